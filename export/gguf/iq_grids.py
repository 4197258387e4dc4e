"""GGUF's types of 1 to 3 bits, whose values stand in tables of small integers: stored in 8 bits, without loss.

The tables are those of the Python package gguf (MIT), which has to be installed: it gives the floats, and as each is a
small integer times its group's scale, rounded once, the integers are found again exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.gguf.dequantize import FORMS, Form
from embedllm.package.packing import Packing

if TYPE_CHECKING:
    from embedllm.export.gguf.dequantize import Floats, Parts
    from embedllm.types import U8


def _half(blocks: U8) -> Floats:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _words(blocks: U8, start: int, stop: int, kind: str) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, start:stop]).view(kind)


def _nibbles(packed: U8) -> Floats:
    """The low half of each byte before its high one."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1).astype(np.float32)


def _iq1_s(blocks: U8) -> Floats:
    """An eighth: the tables hold -1, 0 and 1, and an eighth is added or taken away."""
    scales = (_words(blocks, 34, 50, "<u2") >> 12 & 7).astype(np.float32)
    return _half(blocks) * (2 * scales + 1) / 8


def _iq1_m(blocks: U8) -> Floats:
    """As of IQ1_S; the float16 lies in the highest bits of four words, and each has four scales of 3 bits."""
    words = _words(blocks, 48, 56, "<u2")
    pieces = (words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16)
    half = np.bitwise_or.reduce(pieces, axis=1, keepdims=True).astype("<u2").view("<f2").astype(np.float32)
    scales = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), -1)
    return half * (2 * scales.astype(np.float32) + 1) / 8


def _iq2_xxs(blocks: U8) -> Floats:
    return _half(blocks) * ((_words(blocks, 2, 66, "<u4")[:, 1::2] >> 28).astype(np.float32) + 0.5) / 4


def _iq2_xs(blocks: U8) -> Floats:
    return _half(blocks) * (_nibbles(blocks[:, 66:74]) + 0.5) / 4


def _iq2_s(blocks: U8) -> Floats:
    return _half(blocks) * (_nibbles(blocks[:, 74:82]) + 0.5) / 4


def _iq3_xxs(blocks: U8) -> Floats:
    return _half(blocks) * ((_words(blocks, 66, 98, "<u4") >> 28).astype(np.float32) + 0.5) / 2


def _iq3_s(blocks: U8) -> Floats:
    return _half(blocks) * (2 * _nibbles(blocks[:, 106:110]) + 1)


# the size of a group, and the scales [blocks, groups of a block] by which the values are integers
_SCALES: Mapping[str, tuple[int, Callable[[U8], Floats]]] = {
    "IQ1_S": (32, _iq1_s),
    "IQ1_M": (16, _iq1_m),
    "IQ2_XXS": (32, _iq2_xxs),
    "IQ2_XS": (16, _iq2_xs),
    "IQ2_S": (16, _iq2_s),
    "IQ3_XXS": (32, _iq3_xxs),
    "IQ3_S": (32, _iq3_s),
}


def _parts(name: str, blocks: U8) -> Parts:
    try:
        import gguf
    except ImportError as error:
        raise ExportError(
            f"the file has tensors of {name}, whose tables are those of the package gguf. Install it with: "
            "pip install gguf"
        ) from error
    group, scales_of = _SCALES[name]
    with np.errstate(invalid="ignore", over="ignore"):
        floats = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
        scale = scales_of(blocks)
    floats = floats.reshape(*scale.shape, group)
    steps = np.divide(floats, scale[..., None], out=np.zeros_like(floats), where=scale[..., None] != 0)
    with np.errstate(invalid="ignore"):  # of scales that are no numbers, which are found where they are stored
        return (np.rint(steps) + 128).astype(np.uint8), scale, None


ALL_FORMS: Mapping[str, Form] = {**FORMS} | {
    name: Form(Packing(bits=8, group_size=group, scale_bits=32), partial(_parts, name))
    for name, (group, _) in _SCALES.items()
}
