"""Mlps in an ONNX graph. Mixtures of them: embedllm/export/onnx/moe.py."""

from __future__ import annotations

from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.export.onnx.linear import Products
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.weights import Linear
from embedllm.package.tensors import alpha_name

# by the name that embedllm/package/architecture/mlp.py has: the operator, its domain, its attributes
_ACTIVATIONS: dict[str, tuple[str, str, dict[str, float]]] = {
    "silu": ("QuickGelu", MICROSOFT, {"alpha": 1.0}),
    "gelu": ("Gelu", MICROSOFT, {}),
    "gelu_tanh": ("FastGelu", MICROSOFT, {}),
    "relu": ("Relu", "", {}),
    "relu2": ("Relu", "", {}),
}


class Mlps:
    """Writes mlps into a graph."""

    def __init__(self, products: Products) -> None:
        self.graph: Graph = products.graph
        self.products = products

    def mlp(self, mlp: Mlp, x: str) -> str:
        if mlp.gate is None:
            return self.products.linear(self.bent(mlp, self.products.linear(x, [mlp.up], "up")), [mlp.down], "down")
        gate, up = self.products.linear(x, [mlp.gate], "gate"), self.products.linear(x, [mlp.up], "up")
        return self.products.linear(self.gated(mlp, gate, up), [mlp.down], "down")

    def gated(self, mlp: Mlp, gate: str, up: str) -> str:
        """The activation of the gate times up."""
        graph = self.graph
        gate = self.beyond(gate, mlp.sparsity_cutoff) if mlp.sparsity_cutoff else gate
        if mlp.swiglu_limit:
            gate = graph.op("Min", [gate, graph.number(mlp.swiglu_limit)], "gate.limited")
            up = graph.op("Clip", [up, graph.number(-mlp.swiglu_limit), graph.number(mlp.swiglu_limit)], "up.limited")
        if mlp.up_offset:
            up = graph.op("Add", [up, graph.number(mlp.up_offset)], "up.offset")
        return graph.op("Mul", [self.bent(mlp, gate), up], "gated")

    def beyond(self, x: str, cutoff: float) -> str:
        """By how much values exceed mean + N standard deviations; these in float32, squares are large."""
        graph, single = self.graph, self.single(x, "cut.single")
        mean = graph.op("ReduceMean", [single, graph.constant(-1)], "cut.mean", keepdims=1)
        centred = graph.op("Sub", [single, mean], "cut.centred")
        square = graph.op("Mul", [centred, centred], "cut.square")
        variance = graph.op("ReduceMean", [square, graph.constant(-1)], "cut.variance", keepdims=1)
        least = graph.op("Mul", [graph.op("Sqrt", [variance], "cut.deviation"), graph.single(cutoff)], "cut.least")
        more = graph.op("Relu", [graph.op("Sub", [centred, least], "cut.difference")], "cut.more")
        return self.activations(more, "cut")

    def bent(self, mlp: Mlp, x: str) -> str:
        return self.xielu(mlp, x) if mlp.xielu_alphas else self.active(mlp.activation, x, slope=mlp.swiglu_alpha)

    def active(self, activation: str, x: str, *, slope: float = 1.0) -> str:
        """x through the activation of that name. slope: of Mlp."""
        kind, domain, attributes = _ACTIVATIONS[activation]
        if slope != 1:
            attributes = {"alpha": slope}
        active = self.graph.op(kind, [x], "silu" if activation == "silu" else "active", domain, **attributes)
        return self.graph.op("Mul", [active, active], "squared") if activation == "relu2" else active

    def xielu(self, mlp: Mlp, x: str) -> str:
        """p * relu(x)**2 + n * (elu(x) - x) + x / 2."""
        graph = self.graph
        positive, negative = (
            graph.op("Softplus", [graph.stored([alpha_name(mlp, part)])], part) for part in ("alpha_p", "alpha_n")
        )
        negative = graph.op("Add", [negative, graph.single(0.5)], "alpha_n.plus_half")
        above = graph.op("Relu", [x], "above")
        square = graph.op("Mul", [above, above], "square")
        bent = graph.op("Sub", [graph.op("Elu", [x], "elu"), x], "bent")
        right = graph.op("Mul", [square, self.activations(positive, "p")], "right")
        left = graph.op("Mul", [bent, self.activations(negative, "n")], "left")
        curve = graph.op("Add", [right, left], "curve")
        return graph.op("Add", [curve, graph.op("Mul", [x, graph.number(0.5)], "half")], "active")

    def product(self, x: str, matrix: Linear, name: str) -> str:
        """x times a small matrix, in float32 whatever the activations are: choices hang on little."""
        graph, x = self.graph, self.single(x, f"{name}.input")
        transposed = graph.op("Transpose", [graph.stored([f"{matrix.name}.weight"])], f"{name}.transposed", perm=[1, 0])
        product = graph.op("MatMul", [x, transposed], f"{name}.product" if matrix.bias else name)
        return graph.op("Add", [product, graph.stored([f"{matrix.name}.bias"])], name) if matrix.bias else product

    def single(self, x: str, name: str) -> str:
        """A value of the activations' type as float32."""
        is_single = self.graph.activations == "float32"
        return x if is_single else self.graph.op("Cast", [x], name, to=FLOAT_TYPES["float32"])

    def activations(self, x: str, name: str) -> str:
        """A float32 value in the type of the activations."""
        to = FLOAT_TYPES[self.graph.activations]
        return x if self.graph.activations == "float32" else self.graph.op("Cast", [x], name, to=to)
