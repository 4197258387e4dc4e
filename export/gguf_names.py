"""Where a decoder's tensors lie in a GGUF file: by the part that each plays, not by its name in the checkpoint.

Source: MODEL_TENSORS and TENSOR_NAMES in constants.py of the Python package gguf 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from embedllm.errors import UnsupportedModel
from embedllm.export.decoder import Attention, Decoder, Encoder, Latent, Layer, Linear, Mlp, Moe, Norm
from embedllm.export.gguf_families import Family

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.gguf_model import Placed


class _More(TypedDict, total=False):
    """Of Place."""

    start: int
    count: int | None
    is_row: bool
    rows: NDArray[np.intp] | None
    turned_over: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Place:
    """Rows of a tensor in a GGUF file, which stand for a whole tensor of the checkpoint."""

    tensor: str
    start: int = 0  # the first row
    count: int | None = None  # rows; None: all
    is_row: bool = False  # a vector stands for a matrix of one row
    rows: NDArray[np.intp] | None = None  # of each row of the checkpoint's, which one; None: the same
    turned_over: int = 0  # so many parts, of each of which its rows are the checkpoint's columns


def places(decoder: Decoder, family: Family, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    """The place of every tensor that a decoder names, which is restated() already.

    Raises UnsupportedModel for parts that GGUF has otherwise.
    """
    found = dict(_matrix(decoder.embedding, "token_embd"))
    encoder, last = decoder.encoder, f"blk.{len(decoder.layers) - 1}"
    is_behind = encoder is not None and encoder.sums_normed  # then the last layer's norm is the model's
    found |= _norm(decoder.norm, f"{last}.layer_output_norm" if is_behind else "output_norm")
    found |= _norm(decoder.embedding_norm, "token_embd_norm") | _encoder(encoder)
    if not decoder.tied:
        found |= _matrix(decoder.head, "output")
    if decoder.positions is not None:
        found |= _matrix(decoder.positions, "position_embd")
    for index, layer in enumerate(decoder.layers):
        block, attention = f"blk.{index}", layer.attention
        if not isinstance(attention, Attention) or layer.token_input is not None:
            raise UnsupportedModel(f"layers of '{decoder.model_type}' models are not read from GGUF.")
        for part, where in _norms_behind(layer, block) if is_behind else _norms(layer, block, tensors):
            found |= _norm(part, where)
        found |= _attention(attention, block, family, tensors)
        found |= _mlp(layer.mlp, block, tensors)
    return found


def _matrix(linear: Linear, name: str, **more: Unpack[_More]) -> dict[str, Place]:
    ends = ("weight", "bias") if linear.bias else ("weight",)
    return {f"{linear.source}.{end}": Place(tensor=f"{name}.{end}", **more) for end in ends}


def _norm(norm: Norm | None, name: str) -> dict[str, Place]:
    if norm is None or not norm.source:  # weights of 1
        return {}
    found = {norm.source: Place(tensor=f"{name}.weight")}
    return found | {norm.bias: Place(tensor=f"{name}.bias")} if norm.bias else found


def _encoder(encoder: Encoder | None) -> dict[str, Place]:
    """What models that read whole texts have besides: rows for the parts of a pair, and what is behind the pooling."""
    found: dict[str, Place] = {}
    if encoder is not None and encoder.types is not None:
        found |= _matrix(encoder.types, "token_types", is_row=encoder.types.rows == 1)
    if encoder is not None and encoder.scores:
        first, last = encoder.steps
        found |= _matrix(first.linear, "cls") | _norm(first.norm, "cls.norm") | _matrix(last.linear, "cls.output")
        found[f"{last.linear.source}.weight"] = Place(tensor="cls.output.weight", is_row=True)
    elif encoder is not None:
        for step in encoder.steps:
            found |= _matrix(step.linear, step.linear.source)
    return found


def _attention(attention: Attention, block: str, family: Family, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    found = _norm(attention.q_norm, f"{block}.attn_q_norm") | _norm(attention.k_norm, f"{block}.attn_k_norm")
    found |= _matrix(attention.o, f"{block}.attn_output")
    if attention.sinks:
        found[attention.sinks] = Place(tensor=f"{block}.attn_sinks.weight")
    if attention.latent is not None:
        return found | _latent(attention, attention.latent, block, tensors)
    parts = {"q": attention.q, "k": attention.k, "v": attention.v}
    together, start = f"{block}.attn_qkv", 0
    is_fused = _has(tensors, together, sum(linear.rows for linear in parts.values()))
    for part, linear in parts.items():
        name = together if is_fused else f"{block}.attn_{part}"
        if family.turned and part != "v" and (is_fused or _has(tensors, name, linear.rows)):
            found |= _matrix(linear, name, rows=start + _turned(linear, attention.head_dim))
        else:
            found |= _matrix(linear, name, start=start, count=linear.rows if is_fused else None)
        start += linear.rows if is_fused else 0
    return found


def _latent(attention: Attention, latent: Latent, block: str, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    """Newer files have what makes keys apart from what makes values, and turned over for each head."""
    found = _matrix(attention.q, f"{block}.attn_q" if latent.q is None else f"{block}.attn_q_b")
    if latent.q is not None:
        found |= _matrix(latent.q, f"{block}.attn_q_a")
    found |= _norm(latent.q_norm, f"{block}.attn_q_a_norm") | _norm(latent.kv_norm, f"{block}.attn_kv_a_norm")
    small, rank = f"{block}.attn_kv_a_mqa", latent.kv.rows
    found |= _matrix(latent.kv, small, count=rank) | _matrix(latent.k, small, start=rank, count=latent.k.rows)
    heads, together = attention.heads, f"{block}.attn_kv_b"
    if not _has(tensors, together, attention.k.rows + attention.v.rows):
        found |= _matrix(attention.k, f"{block}.attn_k_b", turned_over=heads)
        return found | _matrix(attention.v, f"{block}.attn_v_b")
    rows = np.arange(attention.k.rows + attention.v.rows).reshape(heads, -1)
    keys = attention.k.rows // heads
    found |= _matrix(attention.k, together, rows=rows[:, :keys].reshape(-1))
    return found | _matrix(attention.v, together, rows=rows[:, keys:].reshape(-1))


def _has(tensors: Mapping[str, Placed], name: str, rows: int) -> bool:
    """Whether a matrix has so many rows: one that has others is refused later, and no list is made of them."""
    tensor = tensors.get(f"{name}.weight")
    return tensor is not None and tensor.shape[0] == rows


def _norms(layer: Layer, block: str, tensors: Mapping[str, Placed]) -> Iterator[tuple[Norm | None, str]]:
    """The norm before the mlp is called as if it were behind attention where there is none of that kind.

    Where attention and mlp lie side by side and have a norm each, attention's is the second one.
    """
    first, second = f"{block}.attn_norm", f"{block}.attn_norm_2"
    before = "ffn_norm" if f"{block}.ffn_norm.weight" in tensors or layer.attention_post_norm else "post_attention_norm"
    has_two = layer.parallel and f"{second}.weight" in tensors
    yield layer.attention_norm, second if has_two else first
    yield layer.attention_post_norm, f"{block}.post_attention_norm"
    yield layer.mlp_norm, first if has_two else f"{block}.{before}"
    yield layer.mlp_post_norm, f"{block}.post_ffw_norm"


def _norms_behind(layer: Layer, block: str) -> Iterator[tuple[Norm | None, str]]:
    """Of layers whose sums are normed."""
    yield layer.attention_norm, f"{block}.attn_output_norm"
    yield layer.mlp_norm, f"{block}.layer_output_norm"


def _mlp(mlp: Mlp | Moe, block: str, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    if isinstance(mlp, Mlp):
        return _one(mlp, block, "", tensors)
    found = _matrix(mlp.router, f"{block}.ffn_gate_inp")
    if mlp.correction:
        found[mlp.correction] = Place(tensor=f"{block}.exp_probs_b.bias", is_row=mlp.correction_is_row)
    for number, expert in enumerate(mlp.experts):
        found |= _expert(expert, number, block, tensors)
    if mlp.shared is not None:
        found |= _one(mlp.shared, block, "_shexp", tensors)
    if mlp.shared_gate is not None:
        found |= _matrix(mlp.shared_gate, f"{block}.ffn_gate_inp_shexp", is_row=True)
    return found


def _one(mlp: Mlp, block: str, end: str, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    """Of a layer, or of every token. Where gate and up are one tensor, that is called up."""
    gate, up, rows = f"{block}.ffn_gate{end}", f"{block}.ffn_up{end}", mlp.up.rows
    found = _matrix(mlp.down, f"{block}.ffn_down{end}")
    if mlp.gate is None:
        return found | _matrix(mlp.up, up)
    if f"{gate}.weight" not in tensors and _has(tensors, up, 2 * rows):
        return found | _matrix(mlp.gate, up, count=rows) | _matrix(mlp.up, up, start=rows, count=rows)
    return found | _matrix(mlp.gate, gate) | _matrix(mlp.up, up)


def _expert(mlp: Mlp, number: int, block: str, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    """Experts lie in one tensor; in the first files each was one, and in some newer ones gate and up are together."""
    found: dict[str, Place] = {}
    parts = {"up": mlp.up, "down": mlp.down} | ({} if mlp.gate is None else {"gate": mlp.gate})
    for part, linear in parts.items():
        alone, together, rows = f"{block}.ffn_{part}.{number}", f"{block}.ffn_gate_up_exps", linear.rows
        if f"{alone}.weight" in tensors:
            found |= _matrix(linear, alone)
        elif part != "down" and f"{together}.weight" in tensors:
            found |= _matrix(linear, together, start=(2 * number + (part == "up")) * rows, count=rows)
        else:
            found |= _matrix(linear, f"{block}.ffn_{part}_exps", start=number * rows, count=rows)
    return found


def _turned(linear: Linear, head_dim: int) -> NDArray[np.intp]:
    """Of each row of q or k, where llama.cpp has it, which puts the rows that turn together side by side."""
    shape = (linear.rows // head_dim, 2, head_dim // 2)
    head, half, at = np.unravel_index(np.arange(linear.rows), shape)
    return head * head_dim + 2 * at + half
