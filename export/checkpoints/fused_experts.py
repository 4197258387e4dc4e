"""Experts of a layer in one tensor: gpt-oss's blocks of MXFP4, or floats.

gpt-oss's are read under the names that one matrix of all experts would have, NAME.weight and NAME.bias, an expert's
rows behind the other's; its floats have rows and columns exchanged. Qwen 3.5's are read under the names that each
expert's own matrices would have, experts.NUMBER.up_proj.weight. MXFP4 has 32 values of 4 bits, the earlier one of a
byte in its low bits, and a power of two that multiplies them. Source: OCP Microscaling Formats (MX) Specification 1.0,
sections 5.3.3, 5.4.1 and 6.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.errors import ExportError
from embedllm.files.float_types import FLOATS, to_float32
from embedllm.files.safetensors_header import BYTES, Tensor

if TYPE_CHECKING:
    from embedllm.types import F32

Read = Callable[[Tensor, int, int], bytearray]  # bytes of a tensor: the first, how many

_BLOCK = 32  # values
_ALONE = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj")  # an expert's own matrix
_MEGABLOCKS = (".experts.mlp.w1", ".experts.mlp.w2")  # of Nomic Embed 2
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_BIAS, _NAN = 127, 255  # of E8M0: the exponent of 1, and what is no number


class Experts(Protocol):
    """How such a matrix or bias is stored."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless it has that shape, and types that are known."""
        ...

    def rows(self, read: Read, start: int, stop: int) -> F32: ...


def find_experts(tensors: Mapping[str, Tensor], name: str) -> Experts | None:
    """What stands behind a name that no tensor has; None where there is nothing of that kind.

    Raises ExportError for blocks without scales, and the other way round.
    """
    base, _, kind = name.rpartition(".")
    if name in tensors or not base:
        return None
    if kind == "bias":
        tensor = tensors.get(f"{base}_bias")
        return None if tensor is None else _Biases(tensor)
    blocks, scales, transposed = (tensors.get(f"{base}{end}") for end in ("_blocks", "_scales", ""))
    if kind != "weight":
        return None
    if alone := _ALONE.fullmatch(base):
        return _stacked(tensors, *alone.groups())
    if blocks is not None and scales is not None:
        return _Blocks(blocks, scales)
    if blocks is not None or scales is not None:
        lacks = "_scales" if scales is None else "_blocks"
        raise ExportError(f"the checkpoint has no tensor '{base}{lacks}', without which MXFP4 cannot be read.")
    return None if transposed is None or has_no_suffix(base) else _Transposed(transposed)


def has_no_suffix(name: str) -> bool:
    """Whether a matrix of this name has no ".weight" behind it.

    MegaBlocks' have the matrices of all experts behind each other, [experts * rows, columns]; some are named weights.
    """
    return name.endswith((*_MEGABLOCKS, "_weight", "_embedding_table", "pos_embedding", "position_embeddings"))


def _stacked(tensors: Mapping[str, Tensor], place: str, number: str, part: str) -> Experts | None:
    together = tensors.get(f"{place}.{'down' if part == 'down' else 'gate_up'}_proj")
    if together is None and part == "up":  # of experts without a gate
        together = tensors.get(f"{place}.up_proj")
        return None if together is None else _Stacked(together, int(number))
    if together is None:
        return None
    return _Stacked(together, int(number)) if part == "down" else _Stacked(together, int(number), 2, part == "up")


@dataclass(frozen=True, slots=True)
class _Stacked:
    """One expert of [experts, parts * rows, columns], floats; the gate's rows in front of up's where there are two."""

    tensor: Tensor
    number: int
    parts: int = 1
    part: int = 0

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        dims = self.tensor.shape
        _check_floats(name, self.tensor)
        if len(dims) != 3 or self.number >= dims[0] or dims[1] % self.parts:
            raise ExportError(f"the experts of '{name}' are {list(dims)} together; expected [experts, rows, columns], "
                              f"{self.number + 1} experts at least.")  # fmt: skip
        _check_shape(name, (dims[1] // self.parts, dims[2]), shape)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        _, rows, columns = self.tensor.shape
        first = self.number * rows + self.part * (rows // self.parts)
        size = columns * BYTES[self.tensor.dtype]
        raw = read(self.tensor, (first + start) * size, (stop - start) * size)
        return to_float32(raw, self.tensor.dtype).reshape(stop - start, columns)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """blocks: [experts, rows, columns / 32, 16]; scales: [experts, rows, columns / 32]; bytes both."""

    blocks: Tensor
    scales: Tensor

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        blocks, scales = self.blocks, self.scales
        is_whole = len(scales.shape) == 3 and blocks.shape == (*scales.shape, _BLOCK // 2)
        if blocks.dtype != "U8" or scales.dtype != "U8" or not is_whole:
            raise ExportError(
                f"the MXFP4 of '{name}' is blocks of {blocks.dtype} {list(blocks.shape)} and scales of {scales.dtype} "
                f"{list(scales.shape)}; expected U8 [experts, rows, n, 16] and U8 [experts, rows, n]."
            )
        experts, rows, groups = scales.shape
        _check_shape(name, (experts * rows, groups * _BLOCK), shape)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        groups = self.scales.shape[-1]
        count, size = stop - start, groups * _BLOCK // 2
        packed = np.frombuffer(read(self.blocks, start * size, count * size), np.uint8).reshape(count, groups, -1)
        exponents = np.frombuffer(read(self.scales, start * groups, count * groups), np.uint8).reshape(count, groups)
        values = np.empty((count, groups, _BLOCK), np.float32)
        values[..., 0::2], values[..., 1::2] = _E2M1[packed & 15], _E2M1[packed >> 4]
        with np.errstate(over="ignore"):  # infinite weights are found where they are stored
            scale = np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS)
            scale[exponents == _NAN] = np.nan
            values *= scale[..., None]
        return values.reshape(count, groups * _BLOCK)


@dataclass(frozen=True, slots=True)
class _Transposed:
    """[experts, columns, rows], floats."""

    tensor: Tensor

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        dims = self.tensor.shape
        _check_floats(name, self.tensor)
        if len(dims) != 3:
            raise ExportError(f"tensor '{name}' is {list(dims)}; expected [experts, columns, rows].")
        _check_shape(name, (dims[0] * dims[2], dims[1]), shape)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        _, columns, rows = self.tensor.shape
        size = columns * rows * BYTES[self.tensor.dtype]
        parts: list[F32] = []
        for expert in range(start // rows, -(-stop // rows)):
            values = to_float32(read(self.tensor, expert * size, size), self.tensor.dtype).reshape(columns, rows)
            first = expert * rows
            parts.append(values[:, max(start - first, 0) : stop - first].T)
        return np.ascontiguousarray(np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class _Biases:
    """[experts, rows], floats."""

    tensor: Tensor

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        dims = self.tensor.shape
        _check_floats(name, self.tensor)
        if len(dims) != 2:
            raise ExportError(f"tensor '{name}' is {list(dims)}; expected [experts, rows].")
        _check_shape(name, (dims[0] * dims[1],), shape)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        size = BYTES[self.tensor.dtype]
        return to_float32(read(self.tensor, start * size, (stop - start) * size), self.tensor.dtype)


def _check_floats(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATS:
        raise ExportError(f"tensor '{name}' is {tensor.dtype}; expected F16, BF16 or F32.")


def _check_shape(name: str, actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if actual != expected:
        raise ExportError(
            f"the experts of '{name}' are {list(actual)} together; config.json calls for {list(expected)}."
        )
