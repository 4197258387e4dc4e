"""Stored float tensors as float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embedllm.types import F32

FLOATS = ("F16", "BF16", "F32")  # as safetensors names them


def to_float32(raw: bytearray, dtype: str) -> F32:
    """The values of such a type, flat."""
    if dtype == "BF16":  # the upper half of a float32
        return np.left_shift(np.frombuffer(raw, "<u2"), 16, dtype=np.uint32).view(np.float32)
    return np.frombuffer(raw, "<f2" if dtype == "F16" else "<f4").astype(np.float32, copy=False)
