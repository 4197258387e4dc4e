"""Multi-head latent attention (MLA) in an ONNX graph: before and behind its operator."""

from __future__ import annotations

from embedllm.export.onnx.builder import Graph
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture.attention import Attention, MultiHeadLatent


def latent_qkv(products: Products, norms: Norms, attention: Attention, mla: MultiHeadLatent, normed: str) -> list[str]:
    """q, k and v, each [B, T, heads * D], none of them rotated."""
    graph = products.graph
    first = attention.q if mla.q is None else mla.q
    parts, outputs = [first, mla.kv, mla.k], ["q", "kv_a", "k_rope"]
    q, small, shared = products.split_linear(normed, parts, outputs, "latents", split="latents.split")
    if mla.q is not None:
        q_latent = q if mla.q_norm is None else norms.plain(q, mla.q_norm, "q.normed")
        q = products.linear(q_latent, [attention.q], "q.heads")
    small = norms.plain(small, mla.kv_norm, "kv.normed")
    k, v = products.split_linear(small, [attention.k, attention.v], ["k_nope", "v.own"], "kv", split="kv.split")
    heads, size = attention.heads, attention.head_dim
    own = graph.op("Reshape", [k, graph.constant(0, 0, heads, size - mla.k.rows)], "k.heads")
    one = graph.op("Unsqueeze", [shared, graph.constant(2)], "k_rope.apart")
    each = graph.op("Expand", [one, graph.constant(1, 1, heads, 1)], "k_rope.heads")
    k = graph.op("Concat", [each, own], "k.concat", axis=-1)
    if mla.value_dim < size:
        apart = graph.op("Reshape", [v, graph.constant(0, 0, heads, mla.value_dim)], "v.heads")
        pads = graph.constant(*[0] * 7, size - mla.value_dim)
        v = graph.op("Pad", [apart, pads, graph.number(0.0)], "v.filled_up")
    flat = graph.constant(0, 0, heads * size)
    return [q, *(graph.op("Reshape", [x, flat], name) for x, name in ((k, "k"), (v, "v")))]


def latent_values(graph: Graph, attention: Attention, mla: MultiHeadLatent, context: str) -> str:
    """What attention saw, [B, T, heads * D], without what values were filled up with."""
    heads = graph.op("Reshape", [context, graph.constant(0, 0, attention.heads, attention.head_dim)], "context.heads")
    bounds = [graph.constant(at) for at in (0, mla.value_dim, 3)]
    values = graph.op("Slice", [heads, *bounds], "context.values")
    return graph.op("Reshape", [values, graph.constant(0, 0, attention.heads * mla.value_dim)], "context")
