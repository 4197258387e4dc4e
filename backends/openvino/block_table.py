"""The KV of an OpenVINO engine's sequences: blocks of tokens in buffers that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.openvino.runtime import ov
from embedllm.backends.system.host_memory import return_freed_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import Cached
    from embedllm.types import F32

BLOCK = 32  # tokens; what the plugin of the CPU takes (2026.4)
_GROWTH = 1.5  # each growth copies what is held
_LEAST = 8  # blocks
_KEPT = 64 << 20  # bytes of all buffers that stay when nothing is held: the next prompt would take them again
_SCALES = 8  # bytes before the values of a token and head that are kept in 8 bits: scale and zero point, float32
_STORED = {"u8": np.uint8, "f32": np.float32, "f16": np.float16, "bf16": np.uint16}  # NumPy has no bf16


@dataclass(frozen=True, slots=True)
class Layout:
    """A buffer as the compiled model takes it."""

    heads: int
    width: int  # values stored for a token and head, with its scales
    kind: str  # by OpenVINO's name

    @property
    def dtype(self) -> np.dtype[Cached]:
        return np.dtype(_STORED[self.kind])

    def holds(self, values: NDArray[Cached]) -> bool:
        """Whether values are no floats but what is stored of some."""
        return values.dtype.kind != "f" and values.dtype == self.dtype


class Blocks:
    """Buffers by the names of the model's inputs, and which blocks of them are free; for one thread at a time."""

    def __init__(self, layouts: Mapping[str, Layout], bind: Callable[[str, ov.Tensor], None]) -> None:
        """bind: hands a buffer to the request."""
        self.layouts = layouts
        self._bind = bind
        self._buffers: dict[str, NDArray[Cached]] = {}
        self._free: list[int] = []
        self._count = 0
        self._resize(1)

    def take(self, count: int) -> list[int]:
        if count > len(self._free):
            self._resize(max(self._count + count - len(self._free), int(self._count * _GROWTH), _LEAST))
        blocks, self._free = self._free[:count], self._free[count:]
        return blocks

    def give_back(self, blocks: Sequence[int]) -> None:
        """Frees blocks; with the last of them the memory, unless it is little."""
        self._free += blocks
        is_much = sum(buffer.nbytes for buffer in self._buffers.values()) > _KEPT
        if len(self._free) == self._count > 1 and is_much:
            self._buffers, self._free, self._count = {}, [], 0
            self._resize(1)
            return_freed_memory()

    def read(self, name: str, blocks: Sequence[int], start: int, stop: int) -> F32:
        """What is held of some tokens, [heads, T, D]."""
        return _floats(self.read_stored(name, blocks, start, stop), self.layouts[name].kind)

    def read_stored(self, name: str, blocks: Sequence[int], start: int, stop: int) -> NDArray[Cached]:
        """A copy as it is stored, [heads, T, width]."""
        layout, buffer = self.layouts[name], self._buffers[name]
        stored = np.empty((layout.heads, stop - start, layout.width), layout.dtype)
        for block, within, in_block in _pieces(blocks, start, stop):
            stored[:, within] = buffer[block, :, in_block]
        return stored

    def write(self, name: str, blocks: Sequence[int], start: int, values: NDArray[Cached]) -> None:
        """Stores tokens from a place on. values: [heads, T, D], or as `read_stored` gives them."""
        layout, buffer = self.layouts[name], self._buffers[name]
        stored = values if layout.holds(values) else _stored(values.astype(np.float32, copy=False), layout.kind)
        for block, within, in_block in _pieces(blocks, start, start + values.shape[1]):
            buffer[block, :, in_block] = stored[:, within]

    def _resize(self, count: int) -> None:
        """Larger buffers, one by one, so that only one is there twice."""
        for name, layout in self.layouts.items():
            shape = (count, layout.heads, BLOCK, layout.width)
            new = np.zeros(shape, _STORED[layout.kind])
            if name in self._buffers:
                new[: self._count] = self._buffers[name][: self._count]  # larger where there was no memory for all
            self._buffers[name] = new
            self._bind(name, ov.Tensor(new, ov.Shape(shape), getattr(ov.Type, layout.kind)))
        self._free += range(self._count, count)
        self._count = count


def _pieces(blocks: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
    """Of a span of tokens, block by block: which one, where its tokens are in the span, and where in the block."""
    for at in range(start // BLOCK, -(-stop // BLOCK)):
        first, last = max(start, at * BLOCK), min(stop, (at + 1) * BLOCK)
        yield blocks[at], slice(first - start, last - start), slice(first - at * BLOCK, last - at * BLOCK)


def layout_of(port: ov.ConstOutput) -> Layout:
    """Raises RuntimeError for one that is not known here."""
    _, heads, block, width = port.get_partial_shape()
    kind = port.get_element_type().to_string()
    if kind not in _STORED or block.get_length() != BLOCK:
        raise RuntimeError(f"the KV cache has blocks of {block} tokens of {kind}; {BLOCK} are known")
    return Layout(heads.get_length(), width.get_length(), kind)


def _floats(stored: NDArray[Cached], kind: str) -> F32:
    if kind == "u8":
        scales = np.ascontiguousarray(stored[..., :_SCALES]).view(np.float32)
        return (stored[..., _SCALES:].astype(np.float32) - scales[..., 1:]) * scales[..., :1]
    if kind == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def _stored(values: F32, kind: str) -> NDArray[Cached]:
    """As the plugin stores them; what was read before is stored as it was."""
    if kind == "u8":
        least, most = values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)
        scale = np.where(most > least, (most - least) / 255, np.float32(1e-4)).astype(np.float32)
        zero = (-least / scale).astype(np.float32)
        packed = np.clip(np.rint(values / scale + zero), 0, 255).astype(np.uint8)
        return np.concatenate([np.concatenate([scale, zero], axis=-1).view(np.uint8), packed], axis=-1)
    if kind == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return values.astype(_STORED[kind])
