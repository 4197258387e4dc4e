"""What encoders add to attention scores by the distance of two tokens: buckets and slopes that all backends share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from embedllm.package.architecture.position_bias import DisentangledAttention, RelativePositionBias

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32


def buckets(bias: RelativePositionBias | DisentangledAttention, context: int) -> NDArray[np.int64]:
    """The row of the table for every distance of a query behind a key, from 1 - context to context - 1, in order.

    float32 throughout, as transformers computes them (modeling_mpnet.py and modeling_deberta_v2.py of 5.24).
    """
    distance = np.arange(1 - context, context)
    if isinstance(bias, RelativePositionBias):
        return _t5_buckets(distance, bias.table.rows // 2, bias.max_distance)
    place = distance
    if bias.max_distance:
        place = _log_buckets(distance, bias.buckets, bias.max_distance)
    return np.clip(place + bias.buckets, 0, 2 * bias.buckets - 1)


def _t5_buckets(distance: NDArray[np.int64], each_side: int, max_distance: int) -> NDArray[np.int64]:
    exact, size = each_side // 2, np.abs(distance)
    ratio = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(max_distance / exact)
    )
    grown = exact + (ratio * np.float32(each_side - exact)).astype(np.int64)
    bucket = np.where(size < exact, size, np.minimum(grown, each_side - 1))
    return np.where(distance < 0, bucket + each_side, bucket)


def _log_buckets(distance: NDArray[np.int64], count: int, max_distance: int) -> NDArray[np.int64]:
    middle, size = count // 2, np.abs(distance)
    ratio = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(middle)) / np.log(
        np.float32((max_distance - 1) / middle)
    )
    grown = np.ceil(ratio * np.float32(middle - 1)).astype(np.int64) + middle
    return np.where(size <= middle, distance, np.sign(distance) * grown)


def alibi_slopes(heads: int, max_bias: float) -> F32:
    """Of Alibi, [heads]."""
    power = 2 ** int(math.log2(heads))

    def slopes(count: int) -> list[float]:
        return [2 ** (-max_bias * (head + 1) / count) for head in range(count)]

    return np.array([*slopes(power), *slopes(2 * power)[::2]][:heads], np.float32)
