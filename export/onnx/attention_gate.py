"""Gated attention in an ONNX graph."""

from __future__ import annotations

from embedllm.export.onnx.linear import Products
from embedllm.package.architecture.attention import Attention
from embedllm.package.tensors import ATTENTION_GATE


def gated_context(products: Products, attention: Attention, normed: str, context: str) -> str:
    """What attention saw, [B, T, heads * D], times what the gate lets through. normed: what attention has read."""
    if attention.gate is None:
        return context
    graph = products.graph
    share = graph.op("Sigmoid", [products.linear(normed, [attention.gate], ATTENTION_GATE)], "attention_share")
    if not attention.gates_heads:
        return graph.op("Mul", [context, share], "gated_context")
    heads = graph.op("Reshape", [context, graph.constant(0, 0, attention.heads, -1)], "context.heads")
    of_heads = graph.op("Unsqueeze", [share, graph.constant(3)], "attention_share.heads")
    gated = graph.op("Mul", [heads, of_heads], "gated_heads")
    return graph.op("Reshape", [gated, graph.constant(0, 0, -1)], "gated_context")
