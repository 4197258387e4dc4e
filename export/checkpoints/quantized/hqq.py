"""Matrices as HQQ stores them: integers from which each group takes a float before its scale multiplies them.

A matrix of N rows and K columns, row behind row, is cut into a table of groups: with axis 1 a row of it is a group,
with axis 0 a column. Of 4 bits, the first half of the table's rows lies in the high bits of W_q, the other in the low;
of 2 bits quarters, of 1 eighths. A weight is (integer - zero) * scale, which is integer * scale + minimum: of scales
and zeros of 16 bits the same float32. What else is said of a matrix lies beside it, as tensors of a number or of the
bytes of a text.
Source: hqq 0.2.8 (core/quantize.py, core/bitpack.py, core/utils.py: encode_safetensor_type).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.quantized.packed_integers import Read
from embedllm.export.checkpoints.quantized.scaled import ROUNDED
from embedllm.export.checkpoints.quantized.schemes import GROUPS, WHOLE
from embedllm.export.rounding.quantize import quantize
from embedllm.files.float_types import FLOATS, to_float32
from embedllm.files.safetensors_header import Tensor
from embedllm.package.packing import Packed, Packing, pack_bits, with_minimums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32, U8

_PACKINGS = {"8bit_u8": 8, "4bit_u8": 4, "2bit_u8": 2, "1bit_u8": 1}  # bits
_INTEGERS = {"U8": np.uint8, "I32": np.int32, "I64": np.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroedMatrix:
    """One matrix. words, scale, zero: its tensors, where the checkpoint has them."""

    name: str
    shape: tuple[int, ...]
    words: Tensor
    scale: Tensor | None
    zero: Tensor | None
    bits: int  # of an integer
    group: int
    axis: int

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless it is of that shape and its tensors fit it."""
        if self.shape != shape or len(shape) != 2:
            raise ExportError(f"'{self.name}' is {list(self.shape)}; config.json calls for {list(shape)}.")
        count = math.prod(shape)
        if count % self.group or self._table[0] % (8 // self.bits):
            raise ExportError(f"'{self.name}' is {list(shape)}, which {self.bits} bits in groups of {self.group} do "
                              "not divide.")  # fmt: skip
        if self.words.dtype != "U8" or self.words.length != count * self.bits // 8:
            raise ExportError(f"'W_q' of '{self.name}' is {self.words.dtype} {list(self.words.shape)}; expected "
                              f"{count * self.bits // 8} bytes of U8.")  # fmt: skip
        for part, tensor in (("scale", self.scale), ("zero", self.zero)):
            if tensor is None:
                raise ExportError(f"the checkpoint has no '{part}' of '{self.name}' (or has it quantized, too), and it "
                                  "cannot be read so.")  # fmt: skip
            if tensor.dtype not in FLOATS or math.prod(tensor.shape) != count // self.group:
                raise ExportError(f"'{part}' of '{self.name}' is {tensor.dtype} {list(tensor.shape)}; expected "
                                  f"{' or '.join(FLOATS)}, {count // self.group} of them.")  # fmt: skip

    def packing(self, read: Read) -> Packing:
        """As it is where groups lie in a row, with minimums of float32; else rounded."""
        if not self._is_kept:
            return ROUNDED
        return with_minimums(self.bits, group_size=self._group, scale_bits=32)

    def packed(self, read: Read, packing: Packing, start: int, stop: int) -> Packed:
        """Rows [start, stop) as they are stored. packing: of packing()."""
        if not self._is_kept:
            return quantize(self.rows(read, start, stop), packing)
        codes = self._codes(read, start, stop).reshape(stop - start, -1, packing.group_size)
        first, last = (row * self.shape[1] // self.group for row in (start, stop))
        groups = np.repeat(np.arange(first, last).reshape(stop - start, -1), self.group // packing.group_size, axis=1)
        scale = self._floats(read, self.scale)[groups]
        minimum = -self._floats(read, self.zero)[groups] * scale
        return Packed(pack_bits(codes, packing.bits), scale, None, minimum)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        """Rows [start, stop) as the floats that they stand for."""
        row, column = self._places(start, stop)
        group = row if self.axis == 1 else column
        scale = self._floats(read, self.scale)[group]
        with np.errstate(over="ignore", invalid="ignore"):  # what is infinite is found where it is stored
            values = self._codes(read, start, stop).reshape(-1) * scale
            values -= self._floats(read, self.zero)[group] * scale
        return values.reshape(stop - start, -1)

    @property
    def _table(self) -> tuple[int, int]:
        """Rows and columns of the table of groups."""
        groups = math.prod(self.shape) // self.group
        return (groups, self.group) if self.axis == 1 else (self.group, groups)

    @property
    def _group(self) -> int:
        return self.group if self.group in GROUPS else WHOLE

    @property
    def _is_kept(self) -> bool:
        return self.axis == 1 and self.shape[1] % self.group == 0 and self.group % self._group == 0

    def _places(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row and column in the table of each value of the rows [start, stop)."""
        row, column = np.divmod(np.arange(start * self.shape[1], stop * self.shape[1]), self._table[1])
        return row, column

    def _codes(self, read: Read, start: int, stop: int) -> U8:
        """[n, columns]."""
        words = np.frombuffer(read(self.words, 0, self.words.length), np.uint8).reshape(-1, self._table[1])
        row, column = self._places(start, stop)
        part, row = np.divmod(row, len(words))
        shift = (8 - self.bits * (part + 1)).astype(np.uint8)
        return (words[row, column] >> shift & np.uint8((1 << self.bits) - 1)).reshape(stop - start, -1)

    def _floats(self, read: Read, tensor: Tensor | None) -> F32:
        assert tensor is not None, "as `check` found"
        return to_float32(read(tensor, 0, tensor.length), tensor.dtype)


def find_hqq(tensors: Mapping[str, Tensor], name: str, read: Read) -> ZeroedMatrix | None:
    """The matrix of that name; None where it is floats. Raises ExportError for one that is not understood."""
    base, _, kind = name.rpartition(".")
    words = tensors.get(f"{base}.W_q")
    if words is None or kind != "weight":
        return None

    def load(part: str) -> list[int]:
        tensor = tensors.get(f"{base}.{part}")
        if tensor is None or tensor.dtype not in _INTEGERS:
            raise ExportError(f"the checkpoint has no whole numbers '{base}.{part}', without which '{name}' cannot be "
                              "read.")  # fmt: skip
        return np.frombuffer(read(tensor, 0, tensor.length), _INTEGERS[tensor.dtype]).tolist()

    packing = bytes(each & 255 for each in load("packing")).decode("latin-1")
    if packing not in _PACKINGS or any(load("view_as_float")):
        raise ExportError(f"'{name}' is packed as {packing!r}, with view_as_float {load('view_as_float')}; expected "
                          f"{' or '.join(_PACKINGS)}, as bytes.")  # fmt: skip
    axis, group = load("axis"), load("group_size")
    if axis not in ([0], [1]) or len(group) != 1 or group[0] < 1:
        raise ExportError(f"'{name}' has groups of {group} along axis {axis}; expected a number, and 0 or 1.")
    return ZeroedMatrix(name=name, shape=tuple(load("shape")), words=words, scale=tensors.get(f"{base}.scale"),
                        zero=tensors.get(f"{base}.zero"), bits=_PACKINGS[packing], group=group[0],
                        axis=axis[0])  # fmt: skip
