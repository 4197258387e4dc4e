"""Memory of a device as sessions use it, and arrays that stay there.

Addresses are plain numbers. All operations of a DeviceMemory run in the order in which they were asked for, behind the
runs that were started before them, so that nothing waits but a read.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embedllm.backends.sessions.kv_arrays import DeviceKv

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Region(Protocol):
    """Memory that grows at its end."""

    address: int

    def resize(self, size: int) -> bool:
        """Makes it that many bytes, and keeps what both sizes have; True when its address has changed.

        Raises DeviceError when memory is short, and then has changed nothing.
        """
        ...

    def close(self) -> None: ...


class DeviceMemory(Protocol):
    """What one device does with its memory. Raises DeviceError where it fails."""

    def allocate(self, size: int) -> int:
        """The address of that many bytes."""
        ...

    def free(self, address: int) -> None:
        """Gives back what was allocated, behind the work that still uses it; from any thread."""
        ...

    def reserve(self, size: int) -> Region:
        """A region of no bytes yet, which can grow to that many."""
        ...

    def zero(self, address: int, size: int) -> None: ...

    def copy(self, to: int, source: int, *, width: int, rows: int = 1, to_pitch: int = 0, pitch: int = 0) -> None:
        """Copies rows of `width` bytes within the device, without overlap. Pitches: bytes from a row to the next."""
        ...

    def write(self, to: int, array: NDArray[np.generic], *, to_pitch: int = 0) -> None:
        """Copies a host array [rows, ...], whose rows lie `to_pitch` bytes apart there; 0: one behind the other."""
        ...

    def read(self, source: int, array: NDArray[np.generic], *, pitch: int = 0) -> None:
        """Fills a contiguous host array [rows, ...] from rows that lie `pitch` bytes apart, and waits for it."""
        ...

    def begin_read(self, source: int, array: NDArray[np.generic]) -> Callable[[], None]:
        """Starts to read a small array: what it gives waits for that, not for what is asked for later, and fills it."""
        ...

    def synchronize(self) -> None:
        """Waits for all that was asked for."""
        ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int: ...

    def trim(self) -> None:
        """Gives memory that is free back to the system."""
        ...


class PlainRegion:
    """A region where memory cannot be mapped: a growth takes new memory and copies."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.address = 0
        self._memory = memory
        self._size = 0

    def resize(self, size: int) -> bool:
        if size <= self._size:
            return False
        address = self._memory.allocate(size)
        if self.address:
            self._memory.copy(address, self.address, width=self._size)
            self._memory.free(self.address)
        self.address, self._size = address, size
        return True

    def close(self) -> None:
        if self.address:
            self._memory.free(self.address)
        self.address = self._size = 0


class DeviceBlock:
    """Allocated memory, freed when nothing refers to it any more."""

    def __init__(self, memory: DeviceMemory, size: int) -> None:
        self.memory = memory
        self.size = size
        self.address = memory.allocate(size)
        weakref.finalize(self, memory.free, self.address)


class DeviceArray:
    """An array [kv heads, T, D] on a device, or the part of some tokens of one, without a copy.

    Slices share the memory of what they were cut from, which is freed with the last of them.
    """

    __slots__ = ("address", "block", "dtype", "pitch", "shape", "width")
    is_on_device = True
    ndim = 3

    def __init__(
        self, block: DeviceBlock, address: int, *, shape: tuple[int, int, int], dtype: np.dtype[Any], pitch: int
    ) -> None:
        """pitch: bytes from a head to the next; the tokens of a head lie one behind the other."""
        self.block = block
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.pitch = pitch
        self.width = shape[1] * shape[2] * dtype.itemsize  # bytes of one head

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.width

    @property
    def strides(self) -> tuple[int, int, int]:
        return self.pitch, self.shape[2] * self.dtype.itemsize, self.dtype.itemsize

    def __getitem__(self, key: tuple[slice, slice]) -> DeviceArray:
        """`[:, a:b]`, tokens a to before b; nothing else can be asked for."""
        heads, tokens = key
        start, stop, step = tokens.indices(self.shape[1])
        if heads != slice(None) or step != 1:
            raise IndexError("an array on a device gives a range of tokens only: [:, a:b]")
        shape = (self.shape[0], max(stop - start, 0), self.shape[2])
        return DeviceArray(
            self.block, self.address + start * self.strides[1], shape=shape, dtype=self.dtype, pitch=self.pitch
        )

    def copy(self) -> DeviceArray:
        """The same in memory of its own."""
        block = DeviceBlock(self.block.memory, max(self.nbytes, 1))
        copied = DeviceArray(block, block.address, shape=self.shape, dtype=self.dtype, pitch=self.width)
        copied.fill(self)
        return copied

    def fill(self, source: DeviceArray) -> None:
        """Takes the values of an array of the same shape and type."""
        self.block.memory.copy(
            self.address, source.address, width=self.width, rows=self.shape[0], to_pitch=self.pitch, pitch=source.pitch
        )

    def is_before(self, other: DeviceArray) -> bool:
        """Whether the tokens of another one lie right behind these."""
        return self.address + self.width == other.address and self.block is other.block and self.pitch == other.pitch

    def with_next(self, other: DeviceArray) -> DeviceArray:
        """These tokens and those of another one that lie right behind them."""
        shape = (self.shape[0], self.shape[1] + other.shape[1], self.shape[2])
        return DeviceArray(self.block, self.address, shape=shape, dtype=self.dtype, pitch=self.pitch)

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        """A copy on the host."""
        if copy is False:
            raise ValueError("what is on a device comes to the host as a copy only")
        values = np.empty(self.shape, self.dtype)
        if values.size:
            self.block.memory.read(self.address, values, pitch=self.pitch)
        return values if dtype is None else values.astype(dtype, copy=False)


class DeviceState(DeviceKv):
    """A part of arrays on a device."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        return (self.stop - self.start) * sum(array.shape[0] * array.strides[1] for array in self.values)

    def part(self, start: int, stop: int) -> DeviceState:
        return DeviceState(self.values, start, stop)

    def array(self, value: DeviceArray) -> DeviceArray:
        return value[:, self.start : self.stop]


def new_arrays(
    memory: DeviceMemory, shapes: Sequence[tuple[int, int, int]], dtype: np.dtype[Any]
) -> tuple[DeviceBlock, list[DeviceArray]]:
    """Arrays of these shapes one behind the other in one block."""
    itemsize = dtype.itemsize
    sizes = [heads * tokens * size * itemsize for heads, tokens, size in shapes]
    block = DeviceBlock(memory, max(sum(sizes), 1))
    arrays, address = [], block.address
    for shape, size in zip(shapes, sizes, strict=True):
        pitch = shape[1] * shape[2] * itemsize
        arrays.append(DeviceArray(block, address, shape=shape, dtype=dtype, pitch=pitch))
        address += size
    return block, arrays
