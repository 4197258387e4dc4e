"""Multi-head latent attention (MLA) in an OpenVINO model: before and behind its operator.

Absorbed, as export/onnx/latent_attention.py has it, keys are [rotary key, latent] of a token and values its latent, of
one KV head, which OpenVINO's operators share among the queries themselves. They want values in a variable of their own.
"""

from __future__ import annotations

from typing import Protocol

from embedllm.export.openvino.elementwise import normed
from embedllm.export.openvino.ir import Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.package.architecture.attention import Attention, MultiHeadLatent
from embedllm.package.architecture.weights import Linear


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


class RotateHeads(Protocol):
    """Applies RoPE to x [B, heads, T, D]."""

    def __call__(self, attention: Attention, x: Value, name: str, *, head_dim: int = 0) -> Value: ...


def absorbed_qkv(
    products: Products, attention: Attention, mla: MultiHeadLatent, x: Value, rotate: RotateHeads
) -> tuple[Value, Value, Value]:
    """Of the new tokens: queries for latents [B, heads, T, latent_dim], key [B, 1, T, latent_dim], value."""
    ir, heads, size, rope_dim = products.ir, attention.heads, attention.head_dim, mla.k.rows
    parts = [attention.q if mla.q is None else mla.q, mla.kv, mla.k]
    together = products.linear(x, parts, "latents")
    lengths = ir.constant([part.rows for part in parts])
    q, latent, shared = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "latents.split", 3)
    if mla.q is not None:
        q = products.linear(normed(ir, q, mla.q_norm, "q.normed"), [attention.q], "q.heads.product")
    value = ir.op("Unsqueeze", [normed(ir, latent, mla.kv_norm, "kv.normed"), ir.constant(1)], "v.latent")
    k_rope = rotate(attention, ir.op("Unsqueeze", [shared, ir.constant(1)], "k_rope"), "k", head_dim=rope_dim)
    key = ir.op("Concat", [k_rope, value], "k.latent", axis=-1)
    by_head = ir.op("Reshape", [q, ir.constant([0, 0, heads, size])], "q.heads", special_zero=True)
    heads_first = ir.op("Transpose", [by_head, ir.constant([0, 2, 1, 3])], "q.by_head")
    lengths = ir.constant([rope_dim, size - rope_dim])
    rotated = rotate(attention, heads_first, "q")
    q_rope, q_nope = ir.split("VariadicSplit", [rotated, ir.constant(3), lengths], "q.split", 2)
    matrices = _by_head(products, attention, attention.k, "k_nope")
    absorbed = ir.op("MatMul", [q_nope, matrices], "q_nope.absorbed", transpose_a=False, transpose_b=False)
    return ir.op("Concat", [q_rope, absorbed], "q.latent", axis=-1), key, value


def absorbed_values(products: Products, attention: Attention, latents: Value) -> Value:
    """What heads found [B, heads, T, rank], as their values [B, heads, T, value_dim]."""
    matrices = _by_head(products, attention, attention.v, "v")
    return products.ir.op("MatMul", [latents, matrices], "attention.values", transpose_a=False, transpose_b=True)


def _by_head(products: Products, attention: Attention, part: Linear, name: str) -> Value:
    """What expands a latent, [heads, rows of a head, rank], as floats that are made when the plugin compiles."""
    shape = products.ir.constant([attention.heads, part.rows // attention.heads, part.columns])
    return products.ir.op("Reshape", [products.unpacked(part, name), shape], f"{name}.by_head", special_zero=False)
