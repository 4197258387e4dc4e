"""Matrices of floats of 4 bits (E2M1) with a scale a group: NVFP4 and MXFP4. As they are, in integers of 8 bits.

Twice such a float is a whole number from -12 to 12: with half the scale nothing is lost. N rows, K columns, two a byte,
the earlier one in the low bits:
    compressed-tensors  weight_packed [N, K/2], weight_scale; of NVFP4 weight_global_scale, which scales are divided by
    ModelOpt            weight [N, K/2], weight_scale, weight_scale_2, by which scales are multiplied
Scales are of NVFP4 [N, K/16] F8_E4M3, of MXFP4 [N, K/32] bytes: exponents of 2, 127 more than they are.
Sources: OCP Microscaling Formats 1.0, compressed-tensors 0.20 (compressors/nvfp4, mxfp4), ModelOpt (NVFP4QTensor).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.quantized.packed_integers import Read
from embedllm.export.checkpoints.quantized.schemes import Scheme
from embedllm.files.float_types import to_float32
from embedllm.files.safetensors_header import Tensor
from embedllm.package.packing import Packed, Packing, pack_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32

_MAGNITUDES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int8)  # twice those of E2M1
_CODES = np.concatenate((_MAGNITUDES, -_MAGNITUDES))
_POWERS = np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.float32(np.nan))  # E8M0
_WHOLE = {"weight_global_scale": True, "weight_scale_2": False}  # one for all scales, and whether it divides them
_SCALES = {16: "F8_E4M3", 32: "U8"}  # by the size of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class Float4Matrix:
    """One matrix. scale, whole: None where the checkpoint has none."""

    name: str
    group: int  # 16: NVFP4; 32: MXFP4
    weight: Tensor
    scale: Tensor | None
    whole: Tensor | None
    divides: bool  # whether scales are divided by `whole`

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.weight.shape[:-1], *(2 * size for size in self.weight.shape[-1:]))

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless it is of that shape and its scales fit it."""
        if self.weight.dtype != "U8" or self.shape != shape or len(shape) != 2:
            raise ExportError(f"'{self.name}' is {self.weight.dtype} {list(self.weight.shape)}; expected "
                              f"U8, half as wide as {list(shape)}, which config.json calls for.")  # fmt: skip
        if shape[1] % self.group:
            raise ExportError(f"'{self.name}' has {shape[1]} columns; expected a multiple of {self.group}.")
        expected: dict[str, tuple[Tensor | None, str, list[tuple[int, ...]]]]
        expected = {"scale": (self.scale, _SCALES[self.group], [(shape[0], shape[1] // self.group)])}
        if self.group == 16:
            expected["scale of all"] = self.whole, "F32", [(), (1,)]
        for what, (tensor, dtype, shapes) in expected.items():
            if tensor is None:
                raise ExportError(f"the checkpoint has no {what} of '{self.name}', which is nothing without.")
            if tensor.dtype != dtype or tensor.shape not in shapes:
                raise ExportError(f"the {what} of '{self.name}' is {tensor.dtype} {list(tensor.shape)}; expected "
                                  f"{dtype} {' or '.join(str(list(each)) for each in shapes)}.")  # fmt: skip

    def packing(self, read: Read) -> Packing:
        return Packing(bits=8, group_size=self.group, scale_bits=32)

    def packed(self, read: Read, packing: Packing, start: int, stop: int) -> Packed:
        """Rows [start, stop) as they are stored. packing: of packing()."""
        codes = (self._doubled(read, start, stop) + np.int16(128)).astype(np.uint8)
        return Packed(pack_bits(codes.reshape(stop - start, -1, self.group), 8), self._halves(read, start, stop), None)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        """Rows [start, stop) as the floats that they stand for."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is infinite is found where it is stored
            scale = np.repeat(self._halves(read, start, stop), self.group, axis=1)
            return self._doubled(read, start, stop) * scale

    def _doubled(self, read: Read, start: int, stop: int) -> NDArray[np.int8]:
        """Twice the floats, [n, columns]."""
        raw = np.frombuffer(_rows(read, self.weight, start, stop), np.uint8)
        return _CODES[np.stack((raw & 15, raw >> 4), axis=1)].reshape(stop - start, -1)

    def _halves(self, read: Read, start: int, stop: int) -> F32:
        """Half the scales, [n, groups]."""
        assert self.scale is not None, "as `check` found"
        raw = _rows(read, self.scale, start, stop)
        if self.group == 32:
            scale = _POWERS[np.frombuffer(raw, np.uint8)]
        else:
            assert self.whole is not None, "as `check` found"
            whole = to_float32(read(self.whole, 0, 4), "F32")
            scale = to_float32(raw, self.scale.dtype)
            with np.errstate(all="ignore"):  # as in rows()
                scale = scale / whole if self.divides else scale * whole
        return scale.reshape(stop - start, -1) / np.float32(2)


def find_float4(scheme: Scheme, tensors: Mapping[str, Tensor], name: str) -> Float4Matrix | None:
    """The matrix of that name where it is of 4 bits; None where it is floats, or not there."""
    base, _, kind = name.rpartition(".")
    weight = tensors.get(f"{base}.weight_packed") or tensors.get(name)
    if kind != "weight" or weight is None or weight.dtype != "U8":
        return None
    whole = next((part for part in _WHOLE if f"{base}.{part}" in tensors), None)
    return Float4Matrix(name=name, group=scheme.group, weight=weight, scale=tensors.get(f"{base}.weight_scale"),
                        whole=tensors.get(f"{base}.{whole}"), divides=whole is not None and _WHOLE[whole])  # fmt: skip


def _rows(read: Read, tensor: Tensor, start: int, stop: int) -> bytearray:
    width = tensor.shape[1]  # one byte each
    return read(tensor, start * width, (stop - start) * width)
