"""What an OpenVINO model does to values without matrices: norms, activations, multipliers, caps."""

from __future__ import annotations

from collections.abc import Sequence

from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.weights import Norm
from embedllm.package.tensors import alpha_name


def normed(ir: Ir, x: Value, norm: Norm | None, name: str, *, by_head: bool = False) -> Value:
    """x normed along its last axis; x itself for None.

    A norm with weights for each head takes [B, T, heads, D], or [B, heads, T, D] when `by_head`.
    """
    if norm is None:
        return x
    shape = [norm.size] if norm.groups == 1 else [norm.groups, *([1] if by_head else []), norm.size]
    weight_name = f"{norm.name}.weight"
    if norm.kind == "layer":
        bare = ir.op("MVN", [x, ir.constant([-1])], f"{name}.normed",
                     eps=norm.epsilon, normalize_variance=True, eps_mode="INSIDE_SQRT")  # fmt: skip
    else:
        bare = _divided_by_root(ir, x, norm.epsilon, name)
    weight = ir.stored([weight_name], "f32", shape)
    if not norm.bias:
        return ir.op("Multiply", [bare, weight], name, **BROADCAST)
    weighted = ir.op("Multiply", [bare, weight], f"{name}.weighted", **BROADCAST)
    return ir.op("Add", [weighted, ir.stored([f"{norm.name}.bias"], "f32", shape)], name, **BROADCAST)


def _divided_by_root(ir: Ir, x: Value, epsilon: float, name: str) -> Value:
    """x / sqrt(mean(x**2) + epsilon), in the form that plugins recognise."""
    squares = ir.op("Power", [x, ir.constant(2.0, "f32")], f"{name}.squares", **BROADCAST)
    mean = ir.op("ReduceMean", [squares, ir.constant([-1])], f"{name}.mean", keep_dims=True)
    with_epsilon = ir.op("Add", [mean, ir.constant(epsilon, "f32")], f"{name}.mean_epsilon", **BROADCAST)
    root = ir.op("Sqrt", [with_epsilon], f"{name}.root")
    inverse = ir.op("Divide", [ir.constant(1.0, "f32"), root], f"{name}.inverse", m_pythondiv=True, **BROADCAST)
    return ir.op("Multiply", [x, inverse], f"{name}.normed", **BROADCAST)


def activated(ir: Ir, x: Value, activation: str, slope: float = 1.0) -> Value:
    """x through the activation of that name (embedllm/package/architecture/mlp.py)."""
    if activation == "silu":
        return ir.op("Swish", [x] if slope == 1 else [x, ir.constant(slope, "f32")], activation)
    if activation in ("gelu", "gelu_tanh"):
        return ir.op("Gelu", [x], activation, approximation_mode="ERF" if activation == "gelu" else "TANH")
    if activation == "relu":
        return ir.op("ReLU", [x], activation)
    if activation == "relu2":
        positive = ir.op("ReLU", [x], "relu")
        return ir.op("Multiply", [positive, positive], activation, **BROADCAST)
    raise ValueError(f"there is no activation '{activation}'; expected silu, gelu, gelu_tanh, relu or relu2.")


def beyond(ir: Ir, x: Value, cutoff: float) -> Value:
    """By how much values exceed mean + N standard deviations; x itself for a cutoff of 0."""
    if not cutoff:
        return x
    mean = ir.op("ReduceMean", [x, ir.constant([-1])], "cut.mean", keep_dims=True)
    centred = ir.op("Subtract", [x, mean], "cut.centred", **BROADCAST)
    square = ir.op("Multiply", [centred, centred], "cut.square", **BROADCAST)
    variance = ir.op("ReduceMean", [square, ir.constant([-1])], "cut.variance", keep_dims=True)
    least = multiplied(ir, ir.op("Sqrt", [variance], "cut.deviation"), cutoff, "cut.least")
    return ir.op("ReLU", [ir.op("Subtract", [centred, least], "cut.difference", **BROADCAST)], "cut")


def xielu(ir: Ir, mlp: Mlp, x: Value) -> Value:
    """p * relu(x)**2 + n * (elu(x) - x) + x / 2, of [B, T, values]."""
    positive, negative = (
        ir.op("SoftPlus", [ir.stored([alpha_name(mlp, part)], "f32", [1])], part) for part in ("alpha_p", "alpha_n")
    )
    negative = ir.op("Add", [negative, ir.constant(0.5, "f32")], "alpha_n.plus_half", **BROADCAST)
    above = ir.op("ReLU", [x], "above")
    square = ir.op("Multiply", [above, above], "square", **BROADCAST)
    bent = ir.op("Subtract", [ir.op("Elu", [x], "elu", alpha=1.0), x], "bent", **BROADCAST)
    right = ir.op("Multiply", [square, positive], "right", **BROADCAST)
    left = ir.op("Multiply", [bent, negative], "left", **BROADCAST)
    curve = ir.op("Add", [right, left], "curve", **BROADCAST)
    return ir.op("Add", [curve, multiplied(ir, x, 0.5, "half")], "xielu", **BROADCAST)


def multiplied(ir: Ir, x: Value, by: float, name: str, *, tensor: str = "") -> Value:
    """x times a number; x itself for 1."""
    return x if by == 1 else ir.op("Multiply", [x, ir.constant(by, "f32")], name, tensor=tensor, **BROADCAST)


def capped(ir: Ir, x: Value, limit: float, name: str, *, tensor: str = "") -> Value:
    """limit * tanh(x / limit), in the form in which openvino-genai finds a head; x itself for a limit of 0."""
    if not limit:
        return x
    number = ir.constant(limit, "f32")
    small = ir.op("Divide", [x, number], f"{name}.small", m_pythondiv=True, **BROADCAST)
    bent = ir.op("Tanh", [small], f"{name}.bent")
    return ir.op("Multiply", [bent, number], name, tensor=tensor, **BROADCAST)


def added(ir: Ir, values: Sequence[Value], name: str) -> Value:
    return ir.op("Add", values, name, **BROADCAST)


def multiplied_by(ir: Ir, values: Sequence[Value], name: str) -> Value:
    return ir.op("Multiply", values, name, **BROADCAST)
