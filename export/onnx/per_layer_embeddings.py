"""Per-layer embeddings (PLE) in a graph: what is made of a token for all layers, and how a layer reads it."""

from __future__ import annotations

from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture.layer import PerLayerEmbedding, PerLayerInput


def per_layer_inputs(norms: Norms, products: Products, inputs: PerLayerEmbedding, x: str, rows: str = "") -> str:
    """The per-layer embeddings of the tokens, [B, T, layers, size].

    x: what the first layer is given. rows: of the table, [B, T, layers * size], where there is one.
    """
    graph, shape = norms.graph, norms.graph.constant(0, 0, -1, inputs.size)
    projected = products.linear(x, [inputs.projection], "projection")
    if rows:
        rows = graph.op("Reshape", [rows, shape], f"{rows}.by_layer")
    projected = graph.op("Reshape", [projected, shape], f"{projected}.by_layer")
    both = norms.plain(projected, inputs.norm, "norm")
    both = graph.op("Add", [both, rows], "both") if rows else both
    if inputs.multiplier == 1:
        return both
    return graph.op("Mul", [both, graph.number(inputs.multiplier)], "per_layer_input")


def gated_input(norms: Norms, mlps: Mlps, part: PerLayerInput, x: str, own: str) -> str:
    """What a layer adds to the stream x for its per-layer embeddings. own: these, [B, T, size]."""
    products = mlps.products
    active = mlps.active(part.activation, products.linear(x, [part.gate], "gate"))
    gated = norms.graph.op("Mul", [active, own], "gated")
    return norms.plain(products.linear(gated, [part.up], "up"), part.norm, "norm")
