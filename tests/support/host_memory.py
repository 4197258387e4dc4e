"""This machine's memory as a device's, for tests of what runs on GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from embedllm.backends.gpu.device_memory import DeviceMemory, PlainRegion, Region


class HostMemory(DeviceMemory):
    """All is done at once. limit: bytes, of which no more can be allocated."""

    def __init__(self, limit: int = 1 << 32) -> None:
        self.limit = limit
        self.allocated: dict[int, np.ndarray] = {}

    def allocate(self, size: int) -> int:
        if sum(array.size for array in self.allocated.values()) + size > self.limit:
            raise MemoryError("out of memory")
        array = np.full(size, 0xAB, np.uint8)  # what was never written must not be read
        self.allocated[array.ctypes.data] = array
        return array.ctypes.data

    def free(self, address: int) -> None:
        del self.allocated[address]

    def reserve(self, size: int) -> Region:
        return PlainRegion(self)

    def zero(self, address: int, size: int) -> None:
        _view(address, size)[:] = 0

    def copy(self, to: int, source: int, *, width: int, rows: int = 1, to_pitch: int = 0, pitch: int = 0) -> None:
        for row in range(rows):
            _view(to + row * (to_pitch or width), width)[:] = _view(source + row * (pitch or width), width).copy()

    def write(self, to: int, array: np.ndarray, *, to_pitch: int = 0) -> None:
        rows = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)
        for at, row in enumerate(rows):
            _view(to + at * (to_pitch or row.size), row.size)[:] = row

    def read(self, source: int, array: np.ndarray, *, pitch: int = 0) -> None:
        rows = array.view(np.uint8).reshape(len(array), -1)
        for at, row in enumerate(rows):
            row[:] = _view(source + at * (pitch or row.size), row.size)

    def begin_read(self, source: int, array: np.ndarray) -> Callable[[], None]:
        values = np.empty_like(array)  # as they are now
        self.read(source, values)
        return lambda: np.copyto(array, values)

    def synchronize(self) -> None: ...

    def free_bytes(self) -> int:
        return self.limit - sum(array.size for array in self.allocated.values())

    def total_bytes(self) -> int:
        return self.limit

    def trim(self) -> None: ...


def _view(address: int, size: int) -> np.ndarray:
    """The bytes there."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
