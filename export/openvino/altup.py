"""AltUp in OpenVINO graphs: the streams are one value, [B, T, streams, hidden] (package/architecture/layer.py)."""

from __future__ import annotations

from collections.abc import Sequence

from embedllm.export.openvino.elementwise import multiplied, normed
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.package.architecture.layer import AltUp, AltUpStreams
from embedllm.package.architecture.weights import Linear
from embedllm.package.tensors import altup_scale_name

_LEAST = 1e-5  # a mean square is taken for at least so much


def begun(products: Products, streams: AltUpStreams, x: Value) -> Value:
    """All of one, [B, T, hidden]."""
    return _stacked(products.ir, [x, *_scaled(products, streams.projections, [x] * len(streams.projections), x)])


def ended(products: Products, streams: AltUpStreams, x: Value) -> Value:
    """One of all."""
    ir = products.ir
    first, *others = (stream(ir, x, at) for at in range(len(streams.unembed_projections) + 1))
    together = _stacked(ir, [first, *_scaled(products, streams.unembed_projections, others, first)])
    return ir.op("ReduceMean", [together, ir.constant([2])], "mean", keep_dims=False)


def predicted(products: Products, altup: AltUp, x: Value) -> tuple[Value, Value]:
    """The predicted streams, and the first of them."""
    ir, count = products.ir, altup.correct.rows
    mixed = products.linear(_weights(products, altup, stream(ir, x, 0)), [altup.predict], "mixed")
    square = ir.op("Reshape", [mixed, ir.constant([0, 0, count, count])], "mixed.square", special_zero=True)
    change = ir.op("MatMul", [square, x], "prediction", transpose_a=False, transpose_b=False)
    x = ir.op("Add", [x, change], "streams", **BROADCAST)
    return x, stream(ir, x, 0, "first")


def corrected(products: Products, altup: AltUp, x: Value, first: Value, output: Value) -> Value:
    """The streams, of which `output` was made of the first."""
    ir = products.ir
    share = products.linear(_weights(products, altup, output), [altup.correct], "share")
    share = ir.op("Add", [share, ir.constant(1.0, "f32")], "share.more", **BROADCAST)
    missed = ir.op("Subtract", [output, first], "missed", **BROADCAST)
    share, missed = (
        ir.op("Unsqueeze", [value, ir.constant(at)], f"{name}.apart")
        for value, at, name in ((share, 3, "share"), (missed, 2, "missed"))
    )
    return ir.op("Add", [x, ir.op("Multiply", [share, missed], "change", **BROADCAST)], "streams", **BROADCAST)


def read_first(ir: Ir, index: int, x: Value, hidden: int) -> Value:
    """What the token input of a layer reads."""
    scale = ir.stored([altup_scale_name(index)], "f32", [hidden])
    return ir.op("Multiply", [stream(ir, x, 0, "first"), scale], "first.scaled", **BROADCAST)


def with_others(ir: Ir, x: Value, more: Value, count: int, name: str) -> Value:
    """The streams, with something added to all but the first of `count`."""
    first, others = ir.split("VariadicSplit", [x, ir.constant(2), ir.constant([1, count - 1])], "apart", 2)
    others = ir.op("Add", [others, ir.op("Unsqueeze", [more, ir.constant(2)], "more")], "others", **BROADCAST)
    return ir.op("Concat", [first, others], name, axis=2)


def stream(ir: Ir, x: Value, at: int, name: str = "") -> Value:
    return ir.op("Gather", [x, ir.constant(at), ir.constant(2)], name or f"stream.{at}", batch_dims=0)


def _weights(products: Products, altup: AltUp, first: Value) -> Value:
    """[B, T, streams]"""
    ir = products.ir
    routed = products.linear(normed(ir, first, altup.norm, "norm"), [altup.router], "router")
    return ir.op("Tanh", [multiplied(ir, routed, 1 / altup.router.columns, "router.small")], "weights")


def _scaled(products: Products, matrices: Sequence[Linear], values: Sequence[Value], like: Value) -> list[Value]:
    """Products, scaled to the root mean square of another value."""
    ir = products.ir
    target = ir.op("Sqrt", [_mean_square(ir, like, "first")], "first.size")
    scaled_products: list[Value] = []
    for at, (matrix, x) in enumerate(zip(matrices, values, strict=True), 1):
        product = products.linear(x, [matrix], f"other.{at}")
        least = ir.constant(_LEAST, "f32")
        square = ir.op("Maximum", [_mean_square(ir, product, f"other.{at}"), least], f"other.{at}.most", **BROADCAST)
        size = ir.op("Sqrt", [square], f"other.{at}.size")
        ratio = ir.op("Divide", [target, size], f"other.{at}.ratio", m_pythondiv=True, **BROADCAST)
        scaled_products.append(ir.op("Multiply", [product, ratio], f"other.{at}.scaled", **BROADCAST))
    return scaled_products


def _mean_square(ir: Ir, x: Value, name: str) -> Value:
    square = ir.op("Multiply", [x, x], f"{name}.square", **BROADCAST)
    return ir.op("ReduceMean", [square, ir.constant([-1])], f"{name}.mean_square", keep_dims=True)


def _stacked(ir: Ir, values: Sequence[Value]) -> Value:
    apart = [ir.op("Unsqueeze", [x, ir.constant(2)], f"apart.{at}") for at, x in enumerate(values)]
    return ir.op("Concat", apart, "streams", axis=2)
