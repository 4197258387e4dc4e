"""Where GGUF files have short convolutions, Gated DeltaNet and Mamba-2.

Source: MODEL_TENSORS and TENSOR_NAMES in constants.py of the Python package gguf 0.19; conversion/qwen.py and
conversion/mamba.py of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.gguf.tensor_location import (
    Flat,
    PermutedColumns,
    RowRange,
    TensorLocation,
    has_rows,
    log_of_negative,
    matrix,
    norm_weights,
    permuted,
)
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.architecture.weights import Linear

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.gguf.reader import Placed


def short_convolution(mixer: ShortConv, block: str) -> dict[str, TensorLocation]:
    """The locations of all its tensors."""
    together, kernel = f"{block}.shortconv.in_proj", f"{block}.shortconv.conv"
    locations = matrix(mixer.o, f"{block}.shortconv.out_proj")
    for at, linear in enumerate((mixer.b, mixer.c, mixer.x)):
        locations |= matrix(linear, together, RowRange(at * linear.rows, linear.rows))
    locations[mixer.convolution] = TensorLocation(tensor=f"{kernel}.weight")
    return locations | {mixer.bias: TensorLocation(tensor=f"{kernel}.bias")} if mixer.bias else locations


def delta_net(
    mixer: DeltaNet, block: str, tensors: Mapping[str, Placed], *, interleaved_value_heads: bool
) -> dict[str, TensorLocation]:
    """The locations of all its tensors.

    interleaved_value_heads: first come the first value heads of all key heads, then the second ones.
    """
    keys, values = mixer.key_heads, mixer.value_heads
    is_interleaved = interleaved_value_heads and values != keys
    qkv, channels = f"{block}.attn_qkv", mixer.q.rows + mixer.k.rows + mixer.v.rows
    locations = norm_weights(mixer.norm, f"{block}.ssm_norm")
    if f"{qkv}.weight" in tensors:
        behind = channels - mixer.v.rows
        locations |= matrix(mixer.q, qkv, RowRange(0, mixer.q.rows))
        locations |= matrix(mixer.k, qkv, RowRange(mixer.q.rows, mixer.k.rows))
        values_in_turn = has_rows(tensors, qkv, channels) and is_interleaved
        order = permuted(behind + _interleaved_rows(mixer, mixer.value_dim)) if values_in_turn else None
        locations |= matrix(mixer.v, qkv, order or RowRange(behind, mixer.v.rows))
        gates_in_turn = has_rows(tensors, f"{block}.attn_gate", mixer.z.rows) and is_interleaved
        gates = permuted(_interleaved_rows(mixer, mixer.value_dim) if gates_in_turn else None)
        locations |= matrix(mixer.z, f"{block}.attn_gate", gates)
    else:  # as the first files had them
        locations |= _shared_tensor(f"{block}.ssm_in", (mixer.q, mixer.k, mixer.v, mixer.z), keys, tensors)
    out = tensors.get(f"{block}.ssm_out.weight")
    is_whole = out is not None and out.shape == (mixer.o.rows, mixer.o.columns)
    is_whole = is_whole and _size(tensors, f"{block}.ssm_a") == values
    heads = permuted(_interleaved_rows(mixer, 1) if is_interleaved and is_whole else None)
    if is_interleaved and is_whole:
        columns = PermutedColumns(_interleaved_rows(mixer, mixer.value_dim), run=mixer.value_dim)
        locations |= matrix(mixer.o, f"{block}.ssm_out", columns)
    else:
        locations |= matrix(mixer.o, f"{block}.ssm_out")
    if f"{block}.ssm_ba.weight" in tensors:
        locations |= _shared_tensor(f"{block}.ssm_ba", (mixer.beta, mixer.decay), keys, tensors)
    else:
        locations |= matrix(mixer.beta, f"{block}.ssm_beta", heads)
        locations |= matrix(mixer.decay, f"{block}.ssm_alpha", heads)
    locations[mixer.log_decay] = TensorLocation(tensor=f"{block}.ssm_a", order=heads, transform=log_of_negative)
    locations[mixer.decay_bias] = TensorLocation(tensor=f"{block}.ssm_dt.bias", order=heads)
    convolved = f"{block}.ssm_conv1d"
    kernels = None
    if is_interleaved and has_rows(tensors, convolved, channels):
        before = np.arange(channels - mixer.v.rows)
        kernels = np.concatenate([before, len(before) + _interleaved_rows(mixer, mixer.value_dim)])
    return locations | {mixer.convolution: TensorLocation(tensor=f"{convolved}.weight", order=permuted(kernels))}


def mamba2(mixer: Mamba2, block: str) -> dict[str, TensorLocation]:
    """The locations of all its tensors. Some vectors are matrices of a row or a column."""
    locations, start = matrix(mixer.o, f"{block}.ssm_out"), 0
    for linear in (mixer.z, mixer.x, mixer.b, mixer.c, mixer.step):
        locations |= matrix(linear, f"{block}.ssm_in", RowRange(start, linear.rows))
        start += linear.rows
    if mixer.norm is not None:
        locations[mixer.norm.source] = TensorLocation(tensor=f"{block}.ssm_norm.weight", order=Flat())
    locations[mixer.log_decay] = TensorLocation(tensor=f"{block}.ssm_a", order=Flat(), transform=log_of_negative)
    locations[mixer.skip] = TensorLocation(tensor=f"{block}.ssm_d", order=Flat())
    locations[mixer.step_bias] = TensorLocation(tensor=f"{block}.ssm_dt.bias")
    locations[mixer.convolution] = TensorLocation(tensor=f"{block}.ssm_conv1d.weight")
    return locations | {mixer.bias: TensorLocation(tensor=f"{block}.ssm_conv1d.bias")} if mixer.bias else locations


def _shared_tensor(
    name: str, linears: Sequence[Linear], groups: int, tensors: Mapping[str, Placed]
) -> dict[str, TensorLocation]:
    """Matrices whose rows lie in one tensor, one share of each behind the other, for each key head."""
    total = sum(linear.rows for linear in linears)
    rows = np.arange(total).reshape(groups, -1) if has_rows(tensors, name, total) else None
    locations: dict[str, TensorLocation] = {}
    start = 0
    for linear in linears:
        share = linear.rows // groups
        own = None if rows is None else rows[:, start : start + share].reshape(-1)
        locations |= matrix(linear, name, permuted(own))
        start += share
    return locations


def _interleaved_rows(mixer: DeltaNet, each: int) -> NDArray[np.intp]:
    """For each row, of `each` a value head, where it is in the file."""
    heads = np.arange(mixer.value_heads).reshape(-1, mixer.key_heads).T.reshape(-1)
    return (heads[:, None] * each + np.arange(each)).reshape(-1)


def _size(tensors: Mapping[str, Placed], name: str) -> int:
    tensor = tensors.get(name)
    return 0 if tensor is None else tensor.shape[0]
