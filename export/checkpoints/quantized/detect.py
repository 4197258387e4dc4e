"""Finds the matrices of a checkpoint that are quantized, whatever the form: what each kind of scheme is read by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from embedllm.export.checkpoints.quantized.bitsandbytes import find_bitsandbytes
from embedllm.export.checkpoints.quantized.fp4 import find_float4
from embedllm.export.checkpoints.quantized.hqq import find_hqq
from embedllm.export.checkpoints.quantized.packed_integers import Read, find_packed
from embedllm.export.checkpoints.quantized.scaled import find_scaled
from embedllm.export.checkpoints.quantized.schemes import Scheme
from embedllm.files.safetensors_header import Tensor

if TYPE_CHECKING:
    from embedllm.package.packing import Packed, Packing
    from embedllm.types import F32


class QuantizedMatrix(Protocol):
    """One matrix, as floats or as it is to be stored."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def check(self, shape: tuple[int, ...]) -> None: ...
    def packing(self, read: Read) -> Packing: ...
    def packed(self, read: Read, packing: Packing, start: int, stop: int) -> Packed: ...
    def rows(self, read: Read, start: int, stop: int) -> F32: ...


def find_quantized(
    scheme: Scheme | None, tensors: Mapping[str, Tensor], name: str, read: Read
) -> QuantizedMatrix | None:
    """The matrix behind the name that it would have as floats; None where it is floats, or not there.

    Raises ExportError for one that is not understood.
    """
    if scheme is None:
        return None
    if scheme.kind == "scaled":
        return find_scaled(scheme, tensors, name)
    if scheme.kind == "float4":
        return find_float4(scheme, tensors, name)
    if scheme.kind == "bitsandbytes":
        return find_bitsandbytes(tensors, name, read)
    if scheme.kind == "hqq":
        return find_hqq(tensors, name, read)
    return find_packed(scheme, tensors, name)
