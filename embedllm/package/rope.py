"""Rotary position embeddings (RoPE): the cos and sin tables that all backends share, and re-rotation of cached keys.

Of M-RoPE and 2-D RoPE which axis rotates which pairs of dimensions, and how far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from embedllm.package.architecture.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mrope,
    ProportionalScaling,
    Rope,
    YarnScaling,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture.vision import DynamicVision
    from embedllm.types import F32


def tables(rope: Rope, stop: int, start: int = 0) -> tuple[F32, F32]:
    """cos and sin for the positions from `start` to before `stop`, [stop - start, rotated / 2] each.

    float32 throughout, in the order of operations of transformers, whose values they equal to the last bit or two.
    Source: transformers' modeling_rope_utils.py (5.24) and the papers that embedllm/package/architecture/rope.py names.
    """
    positions = np.arange(start, stop, dtype=np.float32)[:, None]
    attention_factor = 1.0
    if isinstance(rope.scaling, DynamicScaling):
        angles = positions * _dynamic_frequencies(rope, rope.scaling, start, stop)
    else:
        frequencies = _frequencies(rope)
        if isinstance(rope.scaling, YarnScaling | LongRopeScaling):
            attention_factor = rope.scaling.attention_factor
        if isinstance(rope.scaling, LongRopeScaling) and rope.scaling.is_long:
            attention_factor = rope.scaling.long_attention_factor or attention_factor
        angles = positions * frequencies
    factor = np.float32(attention_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor


def moved_keys(keys: NDArray[np.floating], rope: Rope, start: int, *, by: int) -> NDArray[np.floating]:
    """Keys of the positions from `start` on, as if rotated for positions smaller by `by`.

    keys: [kv heads, T, D], after RoPE; returned in the same type, exact up to rounding. by: at most `start`.
    """
    count, half = keys.shape[1], rope.rotary_dim // 2
    cos, sin = (table.astype(np.float64) for table in tables(rope, start + count, start))
    to_cos, to_sin = (table.astype(np.float64) for table in tables(rope, start + count - by, start - by))
    square = cos * cos + sin * sin  # of YaRN's factor, which the keys have once
    delta_cos = ((cos * to_cos + sin * to_sin) / square).astype(np.float32)  # [T, rotated / 2]
    delta_sin = ((sin * to_cos - cos * to_sin) / square).astype(np.float32)
    first, second, rest = np.split(keys, [half, rope.rotary_dim], axis=-1)
    rotated = [first * delta_cos + second * delta_sin, second * delta_cos - first * delta_sin, rest]
    return np.concatenate(rotated, axis=-1).astype(keys.dtype, copy=False)


def mrope_axes(mrope: Mrope, pairs: int) -> NDArray[np.int64]:
    """Which of time, row and column rotates each pair of dimensions."""
    if not mrope.interleaved:
        return np.repeat(np.arange(len(mrope.sections)), mrope.sections)
    axes = np.zeros(pairs, np.int64)
    for axis, count in enumerate(mrope.sections[1:], 1):
        axes[axis : 3 * count : 3] = axis
    return axes


def frequencies_2d(vision: DynamicVision) -> tuple[F32, F32]:
    """Of the pairs that the first axis of an encoder's 2-D RoPE rotates, and the second, [head_dim / 4] each."""
    half = np.float32(vision.head_dim // 2)
    steps, shift = np.arange(0, half, 2, dtype=np.float32), 1 if vision.rope_interleaved else 0
    first, second = (
        (1 / np.power(np.float32(vision.rope_base), (steps + by) / half)).astype(np.float32) for by in (0, shift)
    )
    return first, second


def _plain(base: float | F32, rotated: int, factors: F32 | float = 1.0) -> F32:
    """factors: what the frequencies are divided by, one by one."""
    exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
    return (1.0 / (factors * np.power(base, exponents, dtype=np.float32))).astype(np.float32)


def _frequencies(rope: Rope) -> F32:
    scaling = rope.scaling
    if isinstance(scaling, LongRopeScaling):
        factors = scaling.long if scaling.is_long else scaling.short
        return _plain(rope.base, rope.rotary_dim, np.array(factors, np.float32))
    if isinstance(scaling, ProportionalScaling):
        return _plain(rope.base, scaling.head_dim)[: rope.rotary_dim // 2] / np.float32(scaling.factor)
    frequencies = _plain(rope.base, rope.rotary_dim)
    if isinstance(scaling, LinearScaling):
        return frequencies / np.float32(scaling.factor)
    if isinstance(scaling, Llama3Scaling):
        return _llama3(frequencies, scaling)
    if isinstance(scaling, YarnScaling):
        return _yarn(frequencies, rope, scaling)
    return frequencies


def _dynamic_frequencies(rope: Rope, scaling: DynamicScaling, start: int, stop: int) -> F32:
    """[stop - start, rotated / 2]: for position p, of a sequence that has just reached p + 1 tokens."""
    lengths = np.maximum(np.arange(start + 1, stop + 1, dtype=np.float64), scaling.original_context)
    stretch = scaling.factor * lengths / scaling.original_context - (scaling.factor - 1)
    bases = rope.base * stretch ** (rope.rotary_dim / (rope.rotary_dim - 2))
    return _plain(bases.astype(np.float32)[:, None], rope.rotary_dim)


def _llama3(frequencies: F32, scaling: Llama3Scaling) -> F32:
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    blended = frequencies  # where the two factors are the same (Llama 4) there are none between
    if high > low:
        blend = (scaling.original_context / wavelengths - low) / (high - low)
        blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    scaled_frequencies = np.where(wavelengths > scaling.original_context / low, frequencies / scaling.factor, blended)
    return np.where(wavelengths < scaling.original_context / high, frequencies, scaled_frequencies).astype(np.float32)


def _yarn(frequencies: F32, rope: Rope, scaling: YarnScaling) -> F32:
    def dimension(rotations: float) -> float:
        """The dimension that turns this often within the trained length."""
        return (
            rope.rotary_dim * math.log(scaling.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))
        )

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    width = high - low if high != low else 0.001
    ramp = np.clip((np.arange(rope.rotary_dim // 2, dtype=np.float32) - low) / width, 0, 1)
    return (frequencies / scaling.factor * ramp + frequencies * (1 - ramp)).astype(np.float32)
