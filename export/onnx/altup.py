"""AltUp in ONNX graphs: the streams are one value, [B, T, streams, hidden] (package/architecture/layer.py)."""

from __future__ import annotations

from collections.abc import Sequence

from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture.layer import AltUp, AltUpStreams
from embedllm.package.architecture.weights import Linear
from embedllm.package.tensors import altup_scale_name

_TO_END = (1 << 63) - 1
_LEAST = 1e-5  # a mean square is taken for at least so much


class AltUpWriter:
    """Writes what is done to several streams into a graph."""

    def __init__(self, products: Products, norms: Norms, mlps: Mlps) -> None:
        self.graph, self.products, self.norms, self.mlps = products.graph, products, norms, mlps

    def begun(self, streams: AltUpStreams, x: str) -> str:
        """All of one, [B, T, hidden]."""
        return self.stacked([x, *self.scaled(streams.projections, [x] * len(streams.projections), x)], "streams")

    def ended(self, streams: AltUpStreams, x: str) -> str:
        """One of all."""
        first, *others = (self.stream(x, at) for at in range(len(streams.unembed_projections) + 1))
        together = self.stacked([first, *self.scaled(streams.unembed_projections, others, first)], "streams")
        return self.graph.op("ReduceMean", [together, self.graph.constant(2)], "mean", keepdims=0)

    def scaled(self, matrices: Sequence[Linear], values: Sequence[str], like: str) -> list[str]:
        """Products, scaled to the root mean square of another value; in float32, squares may be large."""
        graph = self.graph
        target = graph.op("Sqrt", [self.mean_square(like, "first")], "first.size")
        scaled_products: list[str] = []
        for at, (matrix, x) in enumerate(zip(matrices, values, strict=True), 1):
            product = self.products.linear(x, [matrix], f"other.{at}")
            square = graph.op(
                "Max", [self.mean_square(product, f"other.{at}"), graph.single(_LEAST)], f"other.{at}.most"
            )
            ratio = graph.op("Div", [target, graph.op("Sqrt", [square], f"other.{at}.size")], f"other.{at}.ratio")
            ratio = self.mlps.activations(ratio, f"other.{at}.ratio.activations")
            scaled_products.append(graph.op("Mul", [product, ratio], f"other.{at}.normalized"))
        return scaled_products

    def mean_square(self, x: str, name: str) -> str:
        single = self.mlps.single(x, f"{name}.single")
        square = self.graph.op("Mul", [single, single], f"{name}.square")
        return self.graph.op("ReduceMean", [square, self.graph.constant(-1)], f"{name}.mean_square", keepdims=1)

    def stacked(self, values: Sequence[str], name: str) -> str:
        apart = [self.graph.op("Unsqueeze", [x, self.graph.constant(2)], f"{x}.apart") for x in values]
        return self.graph.op("Concat", apart, name, axis=2)

    def stream(self, x: str, at: int, name: str = "") -> str:
        return self.graph.op("Gather", [x, self.graph.constant(at, scalar=True)], name or f"stream.{at}", axis=2)

    def predicted(self, altup: AltUp, x: str) -> tuple[str, str]:
        """The predicted streams, and the first of them."""
        graph, count = self.graph, altup.correct.rows
        graph.scope, scope = f"{graph.scope}.predict", graph.scope
        mixed = self.mlps.product(self.weights(altup, self.stream(x, 0)), altup.predict, "mixed")
        mixed = graph.op("Reshape", [mixed, graph.constant(0, 0, count, count)], "mixed.square")
        mixed = self.mlps.activations(mixed, "mixed.activations")
        x = graph.op("Add", [x, graph.op("MatMul", [mixed, x], "change")], "streams")
        first = self.stream(x, 0, "first")
        graph.scope = scope
        return x, first

    def corrected(self, altup: AltUp, x: str, first: str, output: str) -> str:
        """The streams, of which `output` was made of the first."""
        graph = self.graph
        graph.scope, scope = f"{graph.scope}.correct", graph.scope
        share = self.mlps.product(self.weights(altup, output), altup.correct, "share")
        share = self.mlps.activations(graph.op("Add", [share, graph.single(1.0)], "share.more"), "share.activations")
        missed = graph.op("Sub", [output, first], "missed")
        last = graph.op("Unsqueeze", [share, graph.constant(-1)], "share.apart")
        each = graph.op("Mul", [last, graph.op("Unsqueeze", [missed, graph.constant(2)], "missed.apart")], "change")
        x = graph.op("Add", [x, each], "streams")
        graph.scope = scope
        return x

    def read_first(self, index: int, x: str) -> str:
        """What the token input of a layer reads."""
        scale = self.graph.cast(self.graph.stored([altup_scale_name(index)]))
        return self.graph.op("Mul", [self.stream(x, 0), scale], "first.scaled")

    def with_others(self, x: str, more: str) -> str:
        """The streams, with something added to all but the first."""
        graph = self.graph
        first, others = (
            graph.op("Slice", [x, *map(graph.constant, (*bounds, 2))], name)
            for name, bounds in (("first", (0, 1)), ("others", (1, _TO_END)))
        )
        others = graph.op("Add", [others, graph.op("Unsqueeze", [more, graph.constant(2)], "more")], "others.more")
        return graph.op("Concat", [first, others], "streams", axis=2)

    def weights(self, altup: AltUp, first: str) -> str:
        """In float32, [B, T, streams]."""
        graph = self.graph
        routed = self.mlps.product(self.norms.plain(first, altup.norm, "norm"), altup.router, "router")
        small = graph.op("Mul", [routed, graph.single(1 / altup.router.columns)], "router.small")
        return graph.op("Tanh", [small], "weights")
