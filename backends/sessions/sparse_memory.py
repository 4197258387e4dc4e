"""Memory of KV on the host, of which pages are given back to Linux while the addresses stay.

What is read there afterwards are zeros. Elsewhere the memory of layers with windows is that of all others.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import DTypeLike, NDArray

    from embedllm.backends.base import Cached
    from embedllm.backends.sessions.window_retention import Rows, WindowedKvRetention

_MAPPED = 128 << 10  # bytes, from which on glibc may ask the system for memory
_LARGE = 4 << 20  # bytes, from which on large pages are asked for, as NumPy does it
GIVES_BACK = sys.platform == "linux"  # madvise of others frees nothing


class Holder(Protocol):
    """A sequence, as far as its KV goes."""

    position: int
    kv: dict[str, NDArray[Cached]]  # by name, [1, kv heads, capacity, D]
    retention: WindowedKvRetention


def empty_rows(shape: tuple[int, ...], dtype: DTypeLike, *, is_windowed: bool) -> NDArray[Cached]:
    """Zeros that take no memory yet; with a window in pages that are not large, which are given back whole only.

    On Linux the system's own: a C library that keeps freed memory has to clear it (docs/performance.md#many-sequences).
    Raises MemoryError.
    """
    count = math.prod(shape)
    size = count * np.dtype(dtype).itemsize
    if not is_windowed and (not GIVES_BACK or size < _MAPPED):
        return np.zeros(shape, dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(str(error)) from error
    if is_windowed or size >= _LARGE:
        with suppress(OSError):  # a kernel that was built without large pages
            pages.madvise(mmap.MADV_NOHUGEPAGE if is_windowed else mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, count).reshape(shape)


def move_rows(name: str, holder: Holder, target: NDArray[Cached]) -> None:
    """Copies what a sequence holds, to [1, kv heads, capacity, D]; what it does not keep takes no memory there."""
    source = holder.kv[name]
    for start, stop in holder.retention.of(name, holder.position):
        target[:, :, start:stop] = source[:, :, start:stop]
    if holder.retention.is_windowed(name):
        _give_back(target, [(rows, rows) for rows in holder.retention.gone(name, holder.position)])


def forget(holder: Holder) -> None:
    """Frees the memory of what no window of a sequence will see again."""
    for name, rows in holder.retention.forget(holder.position).items():
        _give_back(holder.kv[name], rows)


def _give_back(array: NDArray[Cached], rows: Iterable[tuple[Rows, Rows]]) -> None:
    """The pages within rows of [1, kv heads, capacity, D], as far as some of them are among the second ones.

    No others, which were given back before: where an operator reads them, each page of zeros is mapped once more.
    """
    size, at, page, advise = array.strides[2], array.ctypes.data, mmap.PAGESIZE, _advise()
    for (start, stop), (some, last) in rows:
        for base in range(at, at + array.shape[1] * array.strides[1], array.strides[1]):  # heads, one after the other
            first = max(-(-(base + start * size) // page), (base + some * size) // page)
            end = min((base + stop * size) // page, -(-(base + last * size) // page))
            if first < end:
                advise(first * page, (end - first) * page, mmap.MADV_DONTNEED)  # a refusal costs nothing but memory


@cache
def _advise() -> Callable[[int, int, int], int]:
    """madvise of an address: an array may be part of what was mapped."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise
