"""GGUF's quantized tensors in the form in which matrices are stored here, without loss: the same integers and scales.

A block of a type has a fixed number of bytes, of values that lie together in a row. It is split into groups: an
integer per value, a scale per group, and for some types a minimum. Values that are no neighbouring integers (IQ4,
MXFP4), or have more than 4 bits, are stored in 8.
Source of the blocks: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from embedllm.package.packing import Packed, Packing, dequantize, pack_bits, with_minimums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F16, F32, U8

    Integers: TypeAlias = NDArray[np.integer]
    Floats: TypeAlias = NDArray[np.floating]
    # codes [blocks, groups of a block, group], what 4 or 8 bits hold; scale and minimum [blocks, groups of a block]
    Parts: TypeAlias = tuple[Integers, Floats, Floats | None]

_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # IQ4_NL and IQ4_XS
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values of 4-bit floats
_PAIRS = np.array([0, 2, 4, 6], np.uint8)  # shifts of four values in a byte


@dataclass(frozen=True, slots=True)
class Form:
    """How a type is stored."""

    packing: Packing
    parts: Callable[[U8], Parts]  # of blocks [n, bytes]


def packed_rows(form: Form, blocks: U8, rows: int) -> Packed:
    """Whole rows. blocks: [n, bytes], row after row."""

    def by_group(values: Floats) -> F16 | F32:
        values = values.reshape(rows, -1)
        if form.packing.scale_bits == 32:
            return values.astype(np.float32, copy=False)
        return values.astype(np.float16, copy=False)

    with np.errstate(invalid="ignore"):  # scales that are no numbers are found where they are stored
        codes, scale, minimum = form.parts(blocks)
        integers = codes.astype(np.uint8, copy=False).reshape(rows, -1, form.packing.group_size)
        lowest = None if minimum is None else by_group(minimum)
        return Packed(pack_bits(integers, form.packing.bits), by_group(scale), None, lowest)


def block_floats(form: Form, blocks: U8) -> F32:
    """The values that blocks stand for, [n, values of a block]."""
    packed = packed_rows(form, blocks, len(blocks))
    with np.errstate(invalid="ignore", over="ignore"):
        return dequantize(packed, form.packing, packed.scale.shape[1] * form.packing.group_size)


def _halves(blocks: U8, start: int) -> F16:
    """The float16 that starts at a byte of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")


def _wide(blocks: U8, start: int) -> F32:
    return _halves(blocks, start).astype(np.float32)


def _both(packed: U8) -> Integers:
    """The low halves of bytes [n, ..., k] before the high ones, [n, ..., 2 * k]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth(bits: U8) -> Integers:
    """Bits 0 to 31 of four bytes, each as a 16, [n, 32]."""
    return np.unpackbits(bits, axis=1, bitorder="little") << 4


def _looked_up(values: tuple[int, ...], codes: Integers) -> U8:
    """The integers that codes stand for, around 128."""
    return np.array([value + 128 for value in values], np.uint8)[codes]


def _quarters(packed: U8) -> Integers:
    """Values of 2 bits, [n, 256], in 64 bytes: the lowest bits of 32 bytes come first, then the next."""
    return ((packed.reshape(-1, 2, 1, 32) >> _PAIRS[:, None]) & 3).reshape(-1, 256)


def _eight_scales(packed: U8) -> tuple[Integers, Integers]:
    """Of 12 bytes: 8 scales and 8 minimums of 6 bits, [n, 8] both."""
    first, second, last = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (last & 15) | (first >> 6 << 4)], axis=1)
    return scales, np.concatenate([second & 63, (last >> 4) | (second >> 6 << 4)], axis=1)


def _q4_0(blocks: U8) -> Parts:
    return _both(blocks[:, 2:]), _halves(blocks, 0), None


def _q4_1(blocks: U8) -> Parts:
    return _both(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: U8) -> Parts:
    return (_both(blocks[:, 6:]) | _fifth(blocks[:, 2:6])) + np.uint8(128 - 16), _halves(blocks, 0), None


def _q5_1(blocks: U8) -> Parts:
    return _both(blocks[:, 8:]) | _fifth(blocks[:, 4:8]), _halves(blocks, 0), _halves(blocks, 2)


def _q8_0(blocks: U8) -> Parts:
    return blocks[:, 2:] ^ np.uint8(128), _halves(blocks, 0), None


def _q2_k(blocks: U8) -> Parts:
    scales = blocks[:, :16]
    return _quarters(blocks[:, 16:80]), _wide(blocks, 80) * (scales & 15), -(_wide(blocks, 82) * (scales >> 4))


def _q3_k(blocks: U8) -> Parts:
    low, packed = _quarters(blocks[:, 32:96]), blocks[:, 96:108]
    high = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    above = (packed[:, None, 8:] >> _PAIRS[:, None]) & 3
    scales = _both(packed[:, :8]) | above.reshape(-1, 16) << 4
    return low + (high.reshape(-1, 256) << 2) + np.uint8(4), _wide(blocks, 108) * (scales.astype(np.float32) - 32), None


def _q4_k(blocks: U8) -> Parts:
    scales, minimums = _eight_scales(blocks[:, 4:16])
    codes = _both(blocks[:, 16:].reshape(-1, 4, 32))
    return codes, _wide(blocks, 0) * scales, -(_wide(blocks, 2) * minimums)


def _q5_k(blocks: U8) -> Parts:
    scales, minimums = _eight_scales(blocks[:, 4:16])
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    codes = _both(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | high << 4
    return codes, _wide(blocks, 0) * scales, -(_wide(blocks, 2) * minimums)


def _q6_k(blocks: U8) -> Parts:
    low = _both(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    codes = (low | _quarters(blocks[:, 128:192]) << 4) + np.uint8(128 - 32)
    return codes, _wide(blocks, 208) * blocks[:, 192:208].view(np.int8), None


def _iq4_nl(blocks: U8) -> Parts:
    return _looked_up(_NONLINEAR, _both(blocks[:, 2:])), _halves(blocks, 0), None


def _iq4_xs(blocks: U8) -> Parts:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    scales = (low | high << 4).astype(np.float32) - 32
    return _looked_up(_NONLINEAR, _both(blocks[:, 8:].reshape(-1, 8, 16))), _wide(blocks, 0) * scales, None


def _mxfp4(blocks: U8) -> Parts:
    exponent = blocks[:, :1].astype(np.uint32)  # of half the power of two, as the values are twice as large
    bits = np.where(exponent < 2, np.uint32(1 << 21) << exponent, (np.maximum(exponent, 1) - 1) << 23)
    return _looked_up(_E2M1, _both(blocks[:, 1:])), bits.astype(np.uint32).view(np.float32), None


def _nvfp4(blocks: U8) -> Parts:
    exponent, fraction = (blocks[:, :4] >> 3 & 15).astype(np.int32), (blocks[:, :4] & 7).astype(np.float32) / 8
    scale = np.where(exponent, np.ldexp(1 + fraction, exponent - 8), np.ldexp(fraction, -7))
    scale[blocks[:, :4] == 127] = 0  # no number, which ggml takes for 0
    return _looked_up(_E2M1, _both(blocks[:, 4:].reshape(-1, 4, 8))), scale.astype(np.float16), None


def _tq1_0(blocks: U8) -> Parts:
    """Five values of three kinds in a byte: the digits, to the base 3, of a fraction of 256."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    parts = ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4))
    shifted = [(part[:, None] * powers[:count]).reshape(len(blocks), -1) for part, count in parts]
    digits = np.concatenate(shifted, axis=1).astype(np.uint16) * 3 >> 8
    return digits.astype(np.uint8) + np.uint8(8 - 1), _halves(blocks, 52), None


def _tq2_0(blocks: U8) -> Parts:
    return _quarters(blocks[:, :64]) + np.uint8(8 - 1), _halves(blocks, 64), None


FORMS: Mapping[str, Form] = {
    "Q4_0": Form(Packing(bits=4), _q4_0),
    "Q4_1": Form(with_minimums(4, group_size=32, scale_bits=16), _q4_1),
    "Q5_0": Form(Packing(bits=8), _q5_0),
    "Q5_1": Form(with_minimums(5, group_size=32, scale_bits=16), _q5_1),
    "Q8_0": Form(Packing(bits=8), _q8_0),
    "Q2_K": Form(with_minimums(2, group_size=16, scale_bits=32), _q2_k),
    "Q3_K": Form(Packing(bits=4, group_size=16, scale_bits=32), _q3_k),
    "Q4_K": Form(with_minimums(4, group_size=32, scale_bits=32), _q4_k),
    "Q5_K": Form(with_minimums(5, group_size=32, scale_bits=32), _q5_k),
    "Q6_K": Form(Packing(bits=8, group_size=16, scale_bits=32), _q6_k),
    "IQ4_NL": Form(Packing(bits=8), _iq4_nl),
    "IQ4_XS": Form(Packing(bits=8, scale_bits=32), _iq4_xs),
    "MXFP4": Form(Packing(bits=8, scale_bits=32), _mxfp4),
    "NVFP4": Form(Packing(bits=8, group_size=16), _nvfp4),
    "TQ1_0": Form(Packing(bits=4, group_size=256), _tq1_0),
    "TQ2_0": Form(Packing(bits=4, group_size=256), _tq2_0),
}
