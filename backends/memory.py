"""What Linux wants to be asked for: large pages under weights, and freed memory back. Elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HUGE_PAGE = 2 << 20  # bytes
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # <linux/mman.h>; the second since Linux 6.1
Range = tuple[int, int]  # addresses, the second one past the end


@contextmanager
def on_huge_pages() -> Iterator[None]:
    """What the block allocates and keeps lies on pages of 2 MiB, as far as the system has them.

    Decoding streams all weights once a token; with pages of 4 KiB the processor stops for an address every 4 KiB, which
    cost a fifth of the speed (docs/performance.md). The C library could be told by an environment variable
    (glibc.malloc.hugetlb), but only before the process starts.
    """
    before = _anonymous()
    yield
    if not before:
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end in _without(_anonymous(), before):
        first, last = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        if last > first:  # a refusal costs nothing but speed
            advise(first, last - first, _MADV_HUGEPAGE)
            advise(first, last - first, _MADV_COLLAPSE)


def return_freed_memory() -> None:
    """To be called when something large was freed; does nothing where it is not needed.

    glibc takes large blocks from the system one by one and gives each back, but whenever one is freed it raises the
    size from which it does so, up to 32 MiB (man mallopt, M_MMAP_THRESHOLD). From the second model on, the weights lie
    in its heap, and all of them stay there after they were freed.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and does not need it
        if trim is not None:
            trim(0)


def _anonymous() -> list[Range]:
    """Where this process has private memory of its own, no file behind it; empty where the system does not tell."""
    if sys.platform != "linux":
        return []
    found: list[Range] = []
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:  # noqa: PTH123
            for line in maps:
                place, rights, _, _, inode, *name = line.split()
                if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                    start, _, end = place.partition("-")
                    found.append((int(start, 16), int(end, 16)))
    except OSError:
        return []
    return found


def _without(ranges: list[Range], others: list[Range]) -> Iterator[Range]:
    """What of the ranges, both lists in order, no other covers."""
    for start, end in ranges:
        for other_start, other_end in others:
            if other_end <= start or end <= other_start:
                continue
            if start < other_start:
                yield start, other_start
            start = max(start, other_end)
        if start < end:
            yield start, end
