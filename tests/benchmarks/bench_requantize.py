"""What is lost when weights of 8-bit floats or NF4 are rounded once more; the numbers of docs/guide-export.md.

    python tests/benchmarks/bench_requantize.py

A matrix of normally distributed weights, 512 x 2048, as FP8 (E4M3) in blocks of 128 x 128, and as NF4 in blocks of 64.
Errors are root mean squares over that of the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.rounding.quantize import quantize
from embedllm.files.float_types import to_float32
from embedllm.package.packing import Packing, dequantize

if TYPE_CHECKING:
    from embedllm.types import F32

_ROWS, _COLUMNS, _BLOCK = 512, 2048, 128
_LARGEST = 448  # of E4M3
_NF4_BLOCK = 64
_NF4 = np.array([-1, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0, 0.07958030,
                 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1], np.float32)  # fmt: skip


def as_fp8(weights: F32) -> F32:
    """The nearest that FP8 has, with a scale for each block."""
    every = to_float32(bytearray(range(256)), "F8_E4M3")
    values = np.unique(every[np.isfinite(every)])
    blocks = weights.reshape(_ROWS // _BLOCK, _BLOCK, _COLUMNS // _BLOCK, _BLOCK)
    scale = np.abs(blocks).max(axis=(1, 3), keepdims=True) / np.float32(_LARGEST)
    nearest = values[np.searchsorted((values[1:] + values[:-1]) / 2, blocks / scale)]
    return (nearest * scale).reshape(weights.shape)


def as_nf4(weights: F32) -> F32:
    """The nearest that NF4 has, with a largest value for each block."""
    blocks = weights.reshape(-1, _NF4_BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    return (_NF4[np.searchsorted((_NF4[1:] + _NF4[:-1]) / 2, blocks / largest)] * largest).reshape(weights.shape)


def error(found: F32, weights: F32) -> float:
    return float(np.sqrt(np.square(found - weights, dtype=np.float64).mean() / np.square(weights).mean()))


def main() -> None:
    weights = np.random.default_rng(0).standard_normal((_ROWS, _COLUMNS)).astype(np.float32) * np.float32(0.02)
    for name, held in (("FP8", as_fp8(weights)), ("NF4", as_nf4(weights))):
        print(f"{name}: {error(held, weights):.2%} from the weights")
        for bits in (8, 4):
            packing = Packing(bits=bits)
            found = dequantize(quantize(held, packing, search=bits == 4), packing, _COLUMNS)
            print(f"{bits} bits: {error(found, held):.2%} from {name}, {error(found, weights):.2%} from the weights")


if __name__ == "__main__":
    main()
