"""Norms in an ONNX graph, in the operators of one variant."""

from __future__ import annotations

from embedllm.export.onnx.builder import MICROSOFT, Graph
from embedllm.package.architecture.weights import Norm


class Norms:
    """Writes norms into a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def stream(self, x: str, residual: str, norm: Norm | None, name: str) -> tuple[str, str]:
        """(norm(x + residual), x + residual). name: of the norm, where there is none."""
        graph = self.graph
        name = graph.named(name if norm is None else norm.name.rsplit(".", 1)[-1])
        if norm is None or norm.kind != "rms" or norm.bias:
            total = graph.op("Add", [residual, x], f"{name}.sum") if residual else x
            return (total if norm is None else self.plain(total, norm, name)), total
        if not residual:
            return self.plain(x, norm, name), x
        total = f"{name}.sum"
        inputs, outputs = [x, residual, self.weight(norm)], [name, "", "", total]
        graph.node("SkipSimplifiedLayerNormalization", inputs, outputs, name, MICROSOFT, epsilon=norm.epsilon)
        return name, total

    def plain(self, x: str, norm: Norm, name: str) -> str:
        """The norm over the last dimension; with weights of their own for heads, x is [B, T, heads, size]."""
        graph, own = self.graph, norm.groups > 1
        adds = bool(norm.bias) and (own or norm.kind == "rms")  # what the operator does not
        inputs = [x, graph.ones(norm.size) if own else self.weight(norm)]
        inputs += [self.bias(norm)] if norm.bias and not adds else []
        weighted = f"{name}.weighted" if adds else name
        kind = "SimplifiedLayerNormalization" if norm.kind == "rms" else "LayerNormalization"
        first = f"{name}.alike" if own else weighted
        normed = graph.op(kind, inputs, first, axis=-1, epsilon=norm.epsilon, stash_type=1)
        if own:
            normed = graph.op("Mul", [normed, self.weight(norm)], weighted)
        return graph.op("Add", [normed, self.bias(norm)], name) if adds else normed

    def heads(self, x: str, norm: Norm, heads: int, head_dim: int) -> str:
        """The norm over each head of x [B, T, heads * D], or over all of them where its size says so."""
        graph = self.graph
        if norm.size != head_dim:
            return self.plain(x, norm, f"{x}.norm")
        split = graph.op("Reshape", [x, graph.constant(0, 0, heads, norm.size)], f"{x}.heads")
        normed = self.plain(split, norm, f"{x}.norm")
        return graph.op("Reshape", [normed, graph.constant(0, 0, heads * norm.size)], f"{x}.flat")

    def weight(self, norm: Norm) -> str:
        return self._stored(norm, "weight")

    def bias(self, norm: Norm) -> str:
        return self._stored(norm, "bias")

    def _stored(self, norm: Norm, kind: str) -> str:
        entry, shape = f"{norm.name}.{kind}", (norm.groups, norm.size) if norm.groups > 1 else ()
        return self.graph.cast(self.graph.stored([entry], shape=shape, name=entry))
