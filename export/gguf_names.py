"""Where a decoder's tensors lie in a GGUF file: by the part that each plays, not by its name in the checkpoint.

Source: MODEL_TENSORS and TENSOR_NAMES in constants.py of the Python package gguf 0.19.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import numpy as np

from embedllm.errors import UnsupportedModel
from embedllm.export.decoder import Attention, Decoder, Layer, Linear, Mlp, Moe, Norm
from embedllm.export.gguf_families import Family

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.gguf_model import Placed

T = TypeVar("T")


class _More(TypedDict, total=False):
    """Of Place."""

    start: int
    count: int
    is_row: bool
    rows: NDArray[np.intp] | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Place:
    """Rows of a tensor in a GGUF file, which stand for a whole tensor of the checkpoint."""

    tensor: str
    start: int = 0  # the first row
    count: int | None = None  # rows; None: all
    is_row: bool = False  # a vector stands for a matrix of one row
    rows: NDArray[np.intp] | None = None  # of each row of the checkpoint's, which one; None: the same


def places(decoder: Decoder, family: Family, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    """The place of every tensor that a decoder names. Raises UnsupportedModel for parts that GGUF has otherwise."""
    found = dict(_matrix(decoder.embedding, "token_embd"))
    found |= _norm(decoder.norm, "output_norm") | _norm(decoder.embedding_norm, "token_embd_norm")
    if not decoder.tied:
        found |= _matrix(decoder.head, "output")
    if decoder.positions is not None:
        found |= _matrix(decoder.positions, "position_embd")
    for index, layer in enumerate(decoder.layers):
        block, attention = f"blk.{index}", layer.attention
        if not isinstance(attention, Attention) or attention.latent is not None or layer.token_input is not None:
            raise UnsupportedModel(f"layers of '{decoder.model_type}' models are not read from GGUF.")
        for part, where in _norms(layer, block, tensors):
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


def _attention(attention: Attention, block: str, family: Family, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    found = _norm(attention.q_norm, f"{block}.attn_q_norm") | _norm(attention.k_norm, f"{block}.attn_k_norm")
    found |= _matrix(attention.o, f"{block}.attn_output")
    if attention.sinks:
        found[attention.sinks] = Place(tensor=f"{block}.attn_sinks.weight")
    if attention.q.source == attention.k.source:
        name = f"{block}.attn_qkv"
        moved = family.regrouped and _has(tensors, name, 3 * attention.q.rows)
        return found | _matrix(attention.q, name, rows=_grouped(attention) if moved else None)
    for part, linear in (("q", attention.q), ("k", attention.k), ("v", attention.v)):
        name = f"{block}.attn_{part}"
        moved = family.turned and part != "v" and _has(tensors, name, linear.rows)
        found |= _matrix(linear, name, rows=_turned(linear, attention.head_dim) if moved else None)
    return found


def _has(tensors: Mapping[str, Placed], name: str, rows: int) -> bool:
    """Whether a matrix has so many rows: one that has others is refused later, and no list is made of them."""
    tensor = tensors.get(f"{name}.weight")
    return tensor is not None and tensor.shape[0] == rows


def _norms(layer: Layer, block: str, tensors: Mapping[str, Placed]) -> Iterator[tuple[Norm | None, str]]:
    """The norm before the mlp is called as if it were behind attention where there is none of that kind."""
    before = "ffn_norm" if f"{block}.ffn_norm.weight" in tensors or layer.attention_post_norm else "post_attention_norm"
    yield layer.attention_norm, f"{block}.attn_norm"
    yield layer.attention_post_norm, f"{block}.post_attention_norm"
    yield layer.mlp_norm, f"{block}.{before}"
    yield layer.mlp_post_norm, f"{block}.post_ffw_norm"


def _mlp(mlp: Mlp | Moe, block: str, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    found: dict[str, Place] = {}
    if isinstance(mlp, Mlp):
        for part, linear in _parts(mlp):
            found |= _matrix(linear, f"{block}.ffn_{part}")
        return found
    found |= _matrix(mlp.router, f"{block}.ffn_gate_inp")
    for number, expert in enumerate(mlp.experts):
        for part, linear in _parts(expert):
            alone = f"{block}.ffn_{part}.{number}"  # as the first files had them
            if f"{alone}.weight" in tensors:
                found |= _matrix(linear, alone)
            else:
                start = number * linear.rows
                found |= _matrix(linear, f"{block}.ffn_{part}_exps", start=start, count=linear.rows)
    if mlp.shared is not None:
        for part, linear in _parts(mlp.shared):
            found |= _matrix(linear, f"{block}.ffn_{part}_shexp")
    if mlp.shared_gate is not None:
        found |= _matrix(mlp.shared_gate, f"{block}.ffn_gate_inp_shexp", is_row=True)
    return found


def _parts(mlp: Mlp) -> Iterator[tuple[str, Linear]]:
    """Where gate and up are one tensor, that is called up."""
    if mlp.gate is not None and mlp.gate.source != mlp.up.source:
        yield "gate", mlp.gate
    yield "up", mlp.up
    yield "down", mlp.down


def _turned(linear: Linear, head_dim: int) -> NDArray[np.intp]:
    """Of each row of q or k, where llama.cpp has it, which puts the rows that turn together side by side."""
    shape = (linear.rows // head_dim, 2, head_dim // 2)
    head, half, at = np.unravel_index(np.arange(linear.rows), shape)
    return head * head_dim + 2 * at + half


def _grouped(attention: Attention) -> NDArray[np.intp]:
    """Of each row of q, k and v, which lie together for each head, where it is behind all of q, or all of k."""
    rows = attention.q.rows
    head, part, at = np.unravel_index(np.arange(3 * rows), (attention.heads, 3, attention.head_dim))
    return part * rows + head * attention.head_dim + at


def without_additions(node: T) -> T:
    """The same description, whose norms add nothing to their weights: GGUF files hold the sums."""
    if isinstance(node, Norm):
        return dataclasses.replace(node, plus=0.0)
    if isinstance(node, tuple):
        return tuple(without_additions(each) for each in node)  # type: ignore[return-value]  # of the same types
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        changes = {f.name: without_additions(getattr(node, f.name)) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **changes)
    return node
