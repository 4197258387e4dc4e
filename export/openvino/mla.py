"""Multi-head latent attention (MLA) in an OpenVINO model: before and behind its operator."""

from __future__ import annotations

from embedllm.export.openvino.elementwise import normed
from embedllm.export.openvino.ir import Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.package.architecture import Attention, MultiHeadLatent


def latent_qkv(products: Products, attention: Attention, mla: MultiHeadLatent, x: Value) -> list[Value]:
    """q, k and v, each [B, T, heads * D], none of them rotated."""
    ir, heads, size = products.ir, attention.heads, attention.head_dim
    parts = [attention.q if mla.q is None else mla.q, mla.kv, mla.k]
    together = products.linear(x, parts, "latents")
    lengths = ir.constant([part.rows for part in parts])
    q, small, shared = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "latents.split", 3)
    if mla.q is not None:
        q = products.linear(normed(ir, q, mla.q_norm, "q.normed"), [attention.q], "q.heads.product")
    both = products.linear(normed(ir, small, mla.kv_norm, "kv.normed"), [attention.k, attention.v], "kv")
    lengths = ir.constant([attention.k.rows, attention.v.rows])
    k, v = ir.split("VariadicSplit", [both, ir.constant(2), lengths], "kv.split", 2)
    own = ir.op("Reshape", [k, ir.constant([0, 0, heads, size - mla.k.rows])], "k_nope", special_zero=True)
    one = ir.op("Unsqueeze", [shared, ir.constant(2)], "k_rope")
    each = ir.op("Tile", [one, ir.constant([1, 1, heads, 1])], "k_rope.each")
    k = ir.op("Concat", [each, own], "k.concat", axis=-1)
    if mla.value_dim < size:
        v = ir.op("Reshape", [v, ir.constant([0, 0, heads, mla.value_dim])], "v.own", special_zero=True)
        pads = [ir.constant([0] * 4), ir.constant([0, 0, 0, size - mla.value_dim]), ir.constant(0.0, "f32")]
        v = ir.op("Pad", [v, *pads], "v.filled_up", pad_mode="constant")
    flat = ir.constant([0, 0, heads * size])
    return [
        q,
        *(ir.op("Reshape", [part, flat], f"{name}.flat", special_zero=True) for part, name in ((k, "k"), (v, "v"))),
    ]


def latent_values(ir: Ir, mla: MultiHeadLatent, context: Value) -> Value:
    """What attention saw, [B, T, heads, D], without what values were filled up with."""
    bounds = [ir.constant([at]) for at in (0, mla.value_dim, 1, 3)]
    return ir.op("Slice", [context, *bounds], "attention.values")
