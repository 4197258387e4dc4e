"""The types of a GGUF file's tensors: how many bytes hold how many values, and those that are read as floats here.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml-common.h (the blocks); sizes as the Python
package gguf 0.19 has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.tensor_floats import to_float32

if TYPE_CHECKING:
    from embedllm.types import F32


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A block: so many values of a row in so many bytes."""

    name: str
    values: int
    bytes: int


TYPES: Mapping[int, GgmlType] = {
    number: GgmlType(*row)
    for number, row in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
    }.items()
}  # fmt: skip


def _q4_0(blocks: np.ndarray) -> F32:
    codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)  # values 0 to 15, then 16 to 31
    return (codes.astype(np.float32) - np.float32(8)) * _scale(blocks)


def _q8_0(blocks: np.ndarray) -> F32:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _scale(blocks)


def _scale(blocks: np.ndarray) -> F32:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


_BLOCKS: Mapping[str, Callable[[np.ndarray], F32]] = {"Q4_0": _q4_0, "Q8_0": _q8_0}
_FLOATS = ("F32", "F16", "BF16")
READ = (*_FLOATS, *_BLOCKS)  # the names of those that floats() knows


def floats(kind: GgmlType, raw: bytearray) -> F32:
    """The values that whole blocks of a type in READ stand for, flat."""
    if kind.name in _FLOATS:
        return to_float32(raw, kind.name)
    with np.errstate(invalid="ignore"):  # weights that are no numbers are found where they are stored
        return _BLOCKS[kind.name](np.frombuffer(raw, np.uint8).reshape(-1, kind.bytes)).reshape(-1)
