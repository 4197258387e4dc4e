"""Matrices and norms: their names in the weights file, and where the source has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where rows are in the source, when that is not a tensor of its own with the same rows in the same order."""

    rows: int  # of the source's tensor, all of its dimensions but the last together
    start: int = 0  # the first row that is taken
    block: int = 0  # rows that are contiguous; 0: all of them
    stride: int = 0  # from the beginning of one block to that of the next
    transposed: bool = False  # the source has [columns, rows]
    parts: int = 1  # a row is that many of the source's last dimension, as of a convolution's kernels; `rows` are whole
    source_columns: int = 0  # of a transposed tensor that is several matrices, behind each other; 0: it is one
    column_start: int = 0  # the first of those columns that is taken
    head_rows: int = 0  # rows of a head; the fields below reorder rows within each
    interleaved: int = (
        0  # number of leading rows with interleaved (GPT-J style) RoPE pairs; here they are in two halves
    )
    rope_last: int = 0  # number of rotated rows that are first here and last in the source
    partial_halves: int = 0  # rotated rows of heads whose halves are only partly rotated; here they come first


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """kind "rms": x / sqrt(mean(x**2) + epsilon) * weight; "layer": x - mean(x) in place of x, and + bias."""

    name: str
    source: str  # the tensor of the weights in the source; empty: weights of 1
    size: int  # values that are normalized together
    epsilon: float
    kind: str = "rms"
    bias: str = ""  # the tensor in the source
    weight_offset: float = 0.0  # added to the source's weights, such as 1 of Gemma's (1 + weight)
    groups: int = 1  # heads that have weights of their own: weight is [groups, size]
    is_flat: bool = False  # the source has them as [groups * size]
    origin: Origin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y = x @ weight.T + bias; weight is [rows, columns]."""

    name: str  # in weights.safetensors
    source: str  # prefix in the source: source.weight, source.bias
    rows: int
    columns: int
    bias: bool = False
    origin: Origin | None = None
    weight_multiplier: float = 1.0  # of the source's weights; what is stored is multiplied by it
    # clipped linear (Gemma 4): x and y are clamped to what four tensors of the source say, a number each:
    # clip.input_min, clip.input_max, clip.output_min, clip.output_max
    clip: str = ""
