"""The types of a GGUF file's tensors: how many bytes hold how many values, and what is made of them.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml-common.h (the blocks); sizes as the Python
package gguf 0.19 has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.gguf.dequantize import block_floats, packed_rows
from embedllm.export.gguf.iq_grids import ALL_FORMS
from embedllm.files.float_types import to_float32
from embedllm.package.packing import Packed, Packing

if TYPE_CHECKING:
    from embedllm.types import F32, U8


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A block: number of values of a row, and its size in bytes."""

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


_FLOATS = {"F32": Packing(bits=32), "F16": Packing(bits=16), "BF16": Packing(bits=16)}
READ = (*_FLOATS, *ALL_FORMS)  # the names of those that are read


def packing_of(kind: GgmlType) -> Packing | None:
    """How a type in READ is stored as it is; None for others. BF16 as float16: whole but for weights below 8e-6."""
    form = ALL_FORMS.get(kind.name)
    return _FLOATS.get(kind.name) if form is None else form.packing


def packed(kind: GgmlType, raw: bytearray, rows: int) -> Packed:
    """Whole rows of a quantized type in READ."""
    return packed_rows(ALL_FORMS[kind.name], _blocks(kind, raw), rows)


def floats(kind: GgmlType, raw: bytearray) -> F32:
    """The values that whole blocks of a type in READ stand for, flat."""
    if kind.name in _FLOATS:
        return to_float32(raw, kind.name)
    return block_floats(ALL_FORMS[kind.name], _blocks(kind, raw)).reshape(-1)


def _blocks(kind: GgmlType, raw: bytearray) -> U8:
    return np.frombuffer(raw, np.uint8).reshape(-1, kind.bytes)
