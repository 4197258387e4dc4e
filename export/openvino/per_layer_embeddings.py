"""Per-layer embeddings (PLE) in a model: what is made of a token for all layers, and how a layer reads it."""

from __future__ import annotations

from embedllm.export.openvino.elementwise import activated, multiplied, normed
from embedllm.export.openvino.ir import BROADCAST, Value
from embedllm.export.openvino.linear import Products
from embedllm.package.architecture.layer import Layer, PerLayerEmbedding, PerLayerInput
from embedllm.package.tensors import scale_name


def per_layer_inputs(products: Products, inputs: PerLayerEmbedding, x: Value, rows: Value | None = None) -> Value:
    """The per-layer embeddings of the tokens, [B, T, layers, size].

    x: what the first layer is given. rows: of the table, [B, T, layers * size], where there is one.
    """
    ir = products.ir
    projected, shape = products.linear(x, [inputs.projection], "projection"), ir.constant([0, 0, -1, inputs.size])
    if rows is not None:
        rows = ir.op("Reshape", [rows, shape], "rows.by_layer", special_zero=True)
    projected = ir.op("Reshape", [projected, shape], "projection.by_layer", special_zero=True)
    both = normed(ir, projected, inputs.norm, "norm")
    both = both if rows is None else ir.op("Add", [both, rows], "both", **BROADCAST)
    return multiplied(ir, both, inputs.multiplier, "per_layer_input")


def with_per_layer_input(
    products: Products, index: int, layer: Layer, x: Value, per_layer_inputs: Value | None
) -> Value:
    """The stream behind a layer of which more follows its mlp."""
    ir, is_scaled = products.ir, bool(layer.scale)
    if layer.per_layer_input is not None:
        assert per_layer_inputs is not None
        own = ir.op("Gather", [per_layer_inputs, ir.constant(index), ir.constant(2)], "per_layer_input", batch_dims=0)
        ir.scope = f"layers.{index}.per_layer_input"
        gated = gated_input(products, layer.per_layer_input, x, own)
        ir.scope = f"layers.{index}"
        x = ir.op("Add", [x, gated], "per_layer_input.sum" if is_scaled else "output", **BROADCAST)
    if not is_scaled:
        return x
    return ir.op("Multiply", [x, ir.stored([scale_name(index)], "f32", [1])], "output", **BROADCAST)


def gated_input(products: Products, part: PerLayerInput, x: Value, own: Value) -> Value:
    """What a layer adds to the stream x for its per-layer embeddings. own: these, [B, T, size]."""
    ir = products.ir
    active = activated(ir, products.linear(x, [part.gate], "gate"), part.activation)
    gated = ir.op("Multiply", [active, own], "gated", **BROADCAST)
    return normed(ir, products.linear(gated, [part.up], "up"), part.norm, "norm")
