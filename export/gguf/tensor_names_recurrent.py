"""Where GGUF files have what stands in place of attention: short convolutions and gated delta rules.

Source: MODEL_TENSORS and TENSOR_NAMES in constants.py of the Python package gguf 0.19; llama.cpp's conversion/qwen.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.gguf.tensor_location import Place, has_rows, matrix, norm_weights
from embedllm.package.architecture import DeltaNet, Linear, ShortConv

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.gguf.reader import Placed


def short_convolution(mixer: ShortConv, block: str) -> dict[str, Place]:
    """The places of all tensors of one."""
    together, place = f"{block}.shortconv.in_proj", f"{block}.shortconv.conv"
    found = matrix(mixer.o, f"{block}.shortconv.out_proj")
    for at, linear in enumerate((mixer.b, mixer.c, mixer.x)):
        found |= matrix(linear, together, start=at * linear.rows, count=linear.rows)
    found[mixer.convolution] = Place(tensor=f"{place}.weight")
    return found | {mixer.bias: Place(tensor=f"{place}.bias")} if mixer.bias else found


def delta_net(mixer: DeltaNet, block: str, tensors: Mapping[str, Placed], *, is_tiled: bool) -> dict[str, Place]:
    """The places of all tensors of one.

    is_tiled: the value heads of one key head are not neighbours: first come the first ones of all key heads.
    """
    keys, values = mixer.key_heads, mixer.value_heads
    tiled = is_tiled and values != keys
    qkv, channels = f"{block}.attn_qkv", mixer.q.rows + mixer.k.rows + mixer.v.rows
    found = norm_weights(mixer.norm, f"{block}.ssm_norm")
    if f"{qkv}.weight" in tensors:
        behind = channels - mixer.v.rows
        found |= matrix(mixer.q, qkv, count=mixer.q.rows)
        found |= matrix(mixer.k, qkv, start=mixer.q.rows, count=mixer.k.rows)
        in_turn = has_rows(tensors, qkv, channels) and tiled
        rows = behind + _tiled(mixer, mixer.value_dim) if in_turn else None
        found |= matrix(mixer.v, qkv, start=0 if in_turn else behind, count=mixer.v.rows, rows=rows)
        in_turn = has_rows(tensors, f"{block}.attn_gate", mixer.z.rows) and tiled
        found |= matrix(mixer.z, f"{block}.attn_gate", rows=_tiled(mixer, mixer.value_dim) if in_turn else None)
    else:  # as the first files had them
        found |= _shared(f"{block}.ssm_in", (mixer.q, mixer.k, mixer.v, mixer.z), keys, tensors)
    out = tensors.get(f"{block}.ssm_out.weight")
    is_whole = out is not None and out.shape == (mixer.o.rows, mixer.o.columns)
    is_whole = is_whole and _size(tensors, f"{block}.ssm_a") == values
    columns = _tiled(mixer, mixer.value_dim) if tiled and is_whole else None
    found |= matrix(mixer.o, f"{block}.ssm_out", columns=columns, run=mixer.value_dim)
    heads = _tiled(mixer, 1) if tiled and is_whole else None
    if f"{block}.ssm_ba.weight" in tensors:
        found |= _shared(f"{block}.ssm_ba", (mixer.beta, mixer.decay), keys, tensors)
    else:
        found |= matrix(mixer.beta, f"{block}.ssm_beta", rows=heads)
        found |= matrix(mixer.decay, f"{block}.ssm_alpha", rows=heads)
    found[mixer.log_decay] = Place(tensor=f"{block}.ssm_a", rows=heads, is_exp=True)
    found[mixer.decay_bias] = Place(tensor=f"{block}.ssm_dt.bias", rows=heads)
    convolved = f"{block}.ssm_conv1d"
    kernels = None
    if tiled and has_rows(tensors, convolved, channels):
        before = np.arange(channels - mixer.v.rows)
        kernels = np.concatenate([before, len(before) + _tiled(mixer, mixer.value_dim)])
    return found | {mixer.convolution: Place(tensor=f"{convolved}.weight", rows=kernels)}


def _shared(name: str, linears: Sequence[Linear], groups: int, tensors: Mapping[str, Placed]) -> dict[str, Place]:
    """Matrices whose rows lie in one tensor, one share of each behind the other, for each key head."""
    total = sum(linear.rows for linear in linears)
    rows = np.arange(total).reshape(groups, -1) if has_rows(tensors, name, total) else None
    found: dict[str, Place] = {}
    start = 0
    for linear in linears:
        share = linear.rows // groups
        own = None if rows is None else rows[:, start : start + share].reshape(-1)
        found |= matrix(linear, name, rows=own)
        start += share
    return found


def _tiled(mixer: DeltaNet, each: int) -> NDArray[np.intp]:
    """Of each value, `each` of a value head, where it is in the file."""
    heads = np.arange(mixer.value_heads).reshape(-1, mixer.key_heads).T.reshape(-1)
    return (heads[:, None] * each + np.arange(each)).reshape(-1)


def _size(tensors: Mapping[str, Placed], name: str) -> int:
    tensor = tensors.get(name)
    return 0 if tensor is None else tensor.shape[0]
