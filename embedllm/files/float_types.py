"""Stored float tensors as float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32

FLOATS = ("F16", "BF16", "F32")  # as safetensors names them
SMALL = ("F8_E4M3", "F8_E5M2")  # that stand for a weight with a scale only


def to_float32(raw: bytearray, dtype: str) -> F32:
    """The values of such a type, flat; of 8 bits, too, as OCP's 8-bit floating point specification (OFP8) has them."""
    if dtype == "BF16":  # the upper half of a float32
        return np.left_shift(np.frombuffer(raw, "<u2"), 16, dtype=np.uint32).view(np.float32)
    if dtype == "F8_E5M2":  # the upper half of a float16
        return np.left_shift(np.frombuffer(raw, np.uint8), 8, dtype=np.uint16).view(np.float16).astype(np.float32)
    if dtype == "F8_E4M3":
        return _e4m3(np.frombuffer(raw, np.uint8))
    return np.frombuffer(raw, "<f2" if dtype == "F16" else "<f4").astype(np.float32, copy=False)


def _e4m3(codes: NDArray[np.uint8]) -> F32:
    """A sign, 4 bits of exponent, 3 of mantissa: as a float16's, whose exponent of 1 is larger by 8. No infinities."""
    every = np.arange(256, dtype=np.uint16)
    values = ((every & 0x80) << 8 | (every & 0x7F) << 7).view(np.float16).astype(np.float32) * np.float32(2**8)
    values[every & 0x7F == 0x7F] = np.nan
    return values[codes]
