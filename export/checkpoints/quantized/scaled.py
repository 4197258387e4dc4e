"""Matrices of 8 bits a weight, times a scale: floats (FP8), which are rounded once more, and integers, which are kept.

N rows, K columns. NAME.weight [N, K] is F8_E4M3, F8_E5M2 or I8; its scales, by which it is multiplied, are of any float
type: one for the matrix, one a row, or one a block. Integers with one a row are as they are stored here.
Sources: DeepSeek-V3 (README_WEIGHTS.md, "weight_scale_inv" [N/128, K/128], rounded up), compressed-tensors
(compressors/naive_quantized, quantization/lifecycle/forward.py: "weight_scale").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.quantized.packed_integers import Read
from embedllm.export.checkpoints.quantized.schemes import WHOLE, Scheme
from embedllm.export.rounding.quantize import quantize
from embedllm.files.float_types import FLOATS, SMALL, to_float32
from embedllm.files.safetensors_header import Tensor
from embedllm.package.packing import Packed, Packing, pack_bits

if TYPE_CHECKING:
    from embedllm.types import F32

ROUNDED = Packing(bits=8)  # of floats of 8 bits and less: what it loses is in docs/guide-export.md
_WEIGHTS = (*SMALL, "I8")
_SCALES = ("weight_scale_inv", "weight_scale")


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """One matrix. scale: None where the checkpoint has none."""

    name: str
    weight: Tensor
    scale: Tensor | None
    block: tuple[int, int] | None  # rows and columns of a scale; None: one for a row, or for all
    factor: float = 1  # of every scale

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless it is of that shape and its scales fit it."""
        if self.shape != shape:
            raise ExportError(f"'{self.name}' is {list(self.shape)}; config.json calls for {list(shape)}.")
        if len(shape) != 2 or self.weight.dtype not in _WEIGHTS:
            raise ExportError(f"'{self.name}' is {self.weight.dtype} {list(shape)}; expected rows and columns of "
                              f"{' or '.join(_WEIGHTS)}.")  # fmt: skip
        if self.scale is None:
            raise ExportError(f"the checkpoint has no {' or '.join(map(repr, _SCALES))} of '{self.name}', which is "
                              f"{self.weight.dtype} and nothing without.")  # fmt: skip
        rows, columns = shape
        shapes = [(), (1,), (1, 1), (rows,), (rows, 1)]
        if self.block is not None:
            shapes = [(-(-rows // self.block[0]), -(-columns // self.block[1]))]
        if self.scale.dtype not in FLOATS or self.scale.shape not in shapes:
            raise ExportError(f"the scale of '{self.name}' is {self.scale.dtype} {list(self.scale.shape)}; expected "
                              f"{' or '.join(FLOATS)} {' or '.join(str(list(each)) for each in shapes)}.")  # fmt: skip

    def packing(self, read: Read) -> Packing:
        """Integers as they are, unless their blocks have several rows or part one; floats rounded."""
        if not self._is_kept:
            return ROUNDED
        assert self.scale is not None, "as `check` found"
        return Packing(
            bits=8, group_size=WHOLE, scale_bits=16 if self.scale.dtype == "F16" and self.factor == 1 else 32
        )

    def packed(self, read: Read, packing: Packing, start: int, stop: int) -> Packed:
        """Rows [start, stop) as they are stored. packing: of packing()."""
        if not self._is_kept:
            return quantize(self.rows(read, start, stop), packing)
        codes = np.frombuffer(self._raw(read, start, stop), np.uint8).reshape(stop - start, -1) ^ np.uint8(128)
        groups = packing.groups(codes.shape[1])
        codes = np.pad(codes, ((0, 0), (0, groups * WHOLE - codes.shape[1]))).reshape(len(codes), groups, WHOLE)
        scale = np.repeat(self._scales(read, start, stop), groups, axis=1)
        return Packed(pack_bits(codes, 8), scale if packing.scale_bits == 32 else scale.astype(np.float16), None)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        """Rows [start, stop) as the floats that they stand for."""
        raw = self._raw(read, start, stop)
        if self.weight.dtype == "I8":
            values = np.frombuffer(raw, np.int8).astype(np.float32)
        else:
            values = to_float32(raw, self.weight.dtype)
        values = values.reshape(stop - start, -1)
        scale = self._scales(read, start, stop)
        if self.block is not None:
            scale = np.repeat(scale, self.block[1], axis=1)[:, : values.shape[1]]
        with np.errstate(over="ignore", invalid="ignore"):  # what is infinite is found where it is stored
            values *= scale
        return values

    @property
    def _is_kept(self) -> bool:
        return self.weight.dtype == "I8" and self.block is None

    def _raw(self, read: Read, start: int, stop: int) -> bytearray:
        columns = self.weight.shape[1]
        return read(self.weight, start * columns, (stop - start) * columns)

    def _scales(self, read: Read, start: int, stop: int) -> F32:
        """[n, scales of a row]."""
        tensor = self.scale
        assert tensor is not None, "as `check` found"
        values = to_float32(read(tensor, 0, tensor.length), tensor.dtype) * np.float32(self.factor)
        if self.block is not None:
            return values.reshape(tensor.shape)[np.arange(start, stop) // self.block[0]]
        return (
            np.broadcast_to(values, self.shape[0])[start:stop, None] if values.size == 1 else values[start:stop, None]
        )


def find_scaled(scheme: Scheme, tensors: Mapping[str, Tensor], name: str) -> ScaledMatrix | None:
    """The matrix of that name where it is of 8 bits; None where it is of floats that need no scale."""
    weight = tensors.get(name)
    if weight is None or weight.dtype not in _WEIGHTS or not name.endswith(".weight"):
        return None
    base = name.rpartition(".")[0]
    scale = next((tensors[f"{base}.{part}"] for part in _SCALES if f"{base}.{part}" in tensors), None)
    return ScaledMatrix(name, weight, scale, scheme.block)
