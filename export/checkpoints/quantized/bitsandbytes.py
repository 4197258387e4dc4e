"""Matrices as bitsandbytes stores them: 4 bits that name one of 16 floats (NF4, FP4), and rows of LLM.int8().

Of 4 bits, a matrix NAME.weight of N rows and K columns is N * K / 2 bytes, row behind row, the earlier value in the
high bits; each block of values has a largest one, absmax, by which the floats of quant_map are multiplied.
Nested: absmax are bytes, which name one of 256 floats, times a nested_absmax a block of them, plus an offset.
Of LLM.int8(), NAME.weight is I8, and SCB has the largest value of each row, which 127 stands for.
Source: bitsandbytes 0.50.2 (functional.py: QuantState.as_dict, backends/default/ops.py, nn/modules.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.quantized.packed_integers import Read
from embedllm.export.checkpoints.quantized.scaled import ROUNDED, ScaledMatrix
from embedllm.export.rounding.quantize import quantize
from embedllm.files.float_types import to_float32
from embedllm.files.safetensors_header import Tensor
from embedllm.package.packing import Packed, Packing

if TYPE_CHECKING:
    from embedllm.types import F32

_KINDS = ("nf4", "fp4")
_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_INT8 = 1 / 127  # of the largest value of a row
_LARGEST = 3.4e38  # number that float32 holds


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedMatrix:
    """One matrix of 4 bits a weight. tensors: _PARTS, where the checkpoint has them."""

    name: str
    shape: tuple[int, ...]
    weight: Tensor
    tensors: Mapping[str, Tensor]
    block: int  # values
    nested_block: int  # values of absmax; 0: they are floats
    offset: float  # of nested absmax

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless it is of that shape and its tensors fit it."""
        if self.shape != shape or len(shape) != 2:
            raise ExportError(f"'{self.name}' is {list(self.shape)}; config.json calls for {list(shape)}.")
        blocks, size = -(-math.prod(shape) // self.block), -(-math.prod(shape) // 2)
        if self.weight.length != size:
            raise ExportError(f"'{self.name}' has {self.weight.length} bytes; {list(shape)} of 4 bits take {size}.")
        expected: dict[str, tuple[str, list[int]]] = {"absmax": ("F32", [blocks]), "quant_map": ("F32", [16])}
        if self.nested_block:
            expected |= {"absmax": ("U8", [blocks]), "nested_quant_map": ("F32", [256]),
                         "nested_absmax": ("F32", [-(-blocks // self.nested_block)])}  # fmt: skip
        for part, (dtype, sizes) in expected.items():
            tensor = self.tensors.get(part)
            if tensor is None:
                raise ExportError(f"the checkpoint has no '{self.name}.{part}', without which it cannot be read.")
            if tensor.dtype != dtype or list(tensor.shape) != sizes:
                raise ExportError(f"'{self.name}.{part}' is {tensor.dtype} {list(tensor.shape)}; expected {dtype} "
                                  f"{sizes}.")  # fmt: skip

    def packing(self, read: Read) -> Packing:
        """Rounded: no integers have the steps of such floats."""
        return ROUNDED

    def packed(self, read: Read, packing: Packing, start: int, stop: int) -> Packed:
        return quantize(self.rows(read, start, stop), packing)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        """Rows [start, stop) as the floats that they stand for."""
        first, last = start * self.shape[1], stop * self.shape[1]  # values
        raw = np.frombuffer(read(self.weight, first // 2, -(-last // 2) - first // 2), np.uint8)
        codes = np.stack((raw >> 4, raw & 15), axis=1).reshape(-1)[first % 2 :][: last - first]
        block = first // self.block
        largest = self._largest(read, block, -(-last // self.block))
        with np.errstate(over="ignore", invalid="ignore"):  # what is infinite is found where it is stored
            values = self._floats(read, "quant_map")[codes]
            values *= largest[np.arange(first, last) // self.block - block]
        return values.reshape(stop - start, -1)

    def _largest(self, read: Read, start: int, stop: int) -> F32:
        """absmax of the blocks [start, stop)."""
        tensor = self.tensors["absmax"]
        if not self.nested_block:
            return to_float32(read(tensor, start * 4, (stop - start) * 4), tensor.dtype)
        codes = np.frombuffer(read(tensor, start, stop - start), np.uint8)
        scale = self._floats(read, "nested_absmax")[np.arange(start, stop) // self.nested_block]
        return self._floats(read, "nested_quant_map")[codes] * scale + np.float32(self.offset)

    def _floats(self, read: Read, part: str) -> F32:
        tensor = self.tensors[part]
        return to_float32(read(tensor, 0, tensor.length), tensor.dtype)


def find_bitsandbytes(tensors: Mapping[str, Tensor], name: str, read: Read) -> CodedMatrix | ScaledMatrix | None:
    """The matrix of that name; None where it is floats. Raises ExportError for one that is not understood."""
    weight, base = tensors.get(name), name.rpartition(".")[0]
    if weight is None:
        return None
    if (largest := tensors.get(f"{base}.SCB")) is not None:
        order = tensors.get(f"{base}.weight_format")
        if order is not None and any(read(order, 0, order.length)):
            raise ExportError(f"'{name}' is in an order of its own, {base}.weight_format; expected 0, row behind row.")
        return ScaledMatrix(name, weight, largest, None, _INT8)
    parts = {part: tensors[f"{name}.{part}"] for part in _PARTS if f"{name}.{part}" in tensors}
    if not parts:
        return None
    states = (tensors.get(f"{name}.quant_state.bitsandbytes__{kind}") for kind in _KINDS)
    state = next((tensor for tensor in states if tensor is not None), None)
    if state is None:
        raise ExportError(f"the checkpoint has no '{name}.quant_state.bitsandbytes__nf4' (or fp4), which says how the "
                          "matrix is stored.")  # fmt: skip
    try:
        settings = json.loads(bytes(read(state, 0, state.length)))
        nested = "nested_absmax" in parts
        shape, block, offset = settings["shape"], settings["blocksize"], settings["nested_offset"] if nested else 0.0
        nested_block = settings["nested_blocksize"] if nested else 0
        sizes = [block, *shape, *([nested_block] if nested else [])]
        if not all(type(size) is int and size > 0 for size in sizes) or type(offset) not in (int, float):
            raise ValueError("sizes are whole numbers above 0")
        if not abs(offset) < _LARGEST:
            raise ValueError(f"an offset of float32 is below {_LARGEST:g}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ExportError(f"'{name}.quant_state' is not understood: {type(error).__name__}: {error}.") from error
    return CodedMatrix(name=name, shape=tuple(shape), weight=weight, tensors=parts, block=block,
                       nested_block=nested_block, offset=float(offset))  # fmt: skip
