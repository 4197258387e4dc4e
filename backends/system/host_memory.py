"""What Linux wants to be asked for: large pages under weights, and freed memory back. Elsewhere nothing happens.

Each by the switch of backends/system/host_tuning.py.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from embedllm.backends.system.host_tuning import PAGES, TRIM, is_on

_HUGE_PAGE = 2 << 20  # bytes
_SMALL_PAGE, _ENTRY = mmap.PAGESIZE, 8  # bytes; the second of /proc/self/pagemap, for each
_PRESENT = 1 << 7  # bit 63 of an entry
# moved at once: each call first waits for something on every processor, and a prompt that begins waits for one
_PIECE = 4 * _HUGE_PAGE
_BESIDE_STEPS = 9  # times as long as a piece took nothing is moved where steps run: a tenth of the time at most
_M_ARENA_MAX = -8  # <malloc.h>
_MADV_COLLAPSE = 25  # <linux/mman.h>; since Linux 6.1, before which nothing is moved
Range = tuple[int, int]  # addresses, the second one past the end


class HugePages:
    """A block: what is allocated within it and kept is moved to pages of 2 MiB afterwards, beside what comes next.

    Decoding streams all weights once a token; with pages of 4 KiB the processor stops for an address every 4 KiB, which
    cost a fifth of the speed (docs/performance.md). The C library could be told by an environment variable
    (glibc.malloc.hugetlb), but only before the process starts. Moving 0.5 GB takes 0.1 to 0.7 s, the more the busier
    the machine and the more scattered its free memory, and 2 s where a virtual machine gets that memory from its host
    first. So nobody waits for it, it waits for prompts, and goes slowly beside the steps behind them.

    What other threads allocate within the block cannot be told apart. So only pages of 2 MiB are moved of which every
    part is resident already: contents, addresses and resident memory stay what they were, and no
    advice stays on a mapping.
    """

    def __init__(self) -> None:
        self._before: list[Range] = []
        self._changed = threading.Condition()  # what follows
        self._prompts = self._steps = 0  # that run now
        self._stopping = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._before = _anonymous() if is_on(PAGES) else []
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not self._before:
            return
        pieces = list(_pieces(_without(_anonymous(), self._before)))
        # a daemon: at the end of the process nobody reads the memory any more
        self._thread = threading.Thread(target=self._move, args=(pieces,), name="embedllm-pages", daemon=True)
        self._thread.start()

    @contextmanager
    def beside(self, tokens: int) -> Iterator[None]:
        """A block in which a model reads that many tokens of each sequence."""
        is_prompt = tokens > 1
        with self._changed:
            self._prompts += is_prompt
            self._steps += not is_prompt
        try:
            yield
        finally:
            with self._changed:
                self._prompts -= is_prompt
                self._steps -= not is_prompt
                self._changed.notify()

    def wait(self) -> None:
        """Until all is moved, or left where it is."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """To be called before that memory is freed: what then lies at its addresses is not to be touched."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self.wait()

    def _move(self, pieces: list[Range]) -> None:
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for piece in pieces:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or not self._prompts)
                is_beside = self._steps > 0
            begun = time.monotonic()
            for start, end in _resident(piece):
                if self._stopping:
                    return
                advise(start, end - start, _MADV_COLLAPSE)  # a refusal costs nothing but speed
            with self._changed:
                if is_beside or self._steps:
                    self._changed.wait_for(lambda: self._stopping, _BESIDE_STEPS * (time.monotonic() - begun))


def return_freed_memory() -> None:
    """To be called when something large was freed; does nothing where it is not needed.

    glibc takes large blocks from the system one by one and gives each back, but whenever one is freed it raises the
    size from which it does so, up to 32 MiB (man mallopt, M_MMAP_THRESHOLD). From the second model on, the weights lie
    in its heap, and all of them stay there after they were freed. What a thread of the runtime took may stay: the end
    of its heap is not given back. The next load uses it again, so that it does not grow.

    All of the process's heap is trimmed, the application's as well: so only where the switch has it.
    """
    if is_on(TRIM):
        trim_heap()


def trim_heap() -> None:
    """Gives what the process's heap has free back to the system, on Linux; for a process that is ours alone."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and does not need it
        if trim is not None:
            trim(0)


def limit_heaps(count: int) -> None:
    """Has all threads share a number of heaps, on Linux; for a process that is ours alone, before it has threads.

    glibc gives threads heaps of their own, up to eight a processor (man mallopt, M_ARENA_MAX). Each load and each
    engine loop is a thread, and what one of them leaves in its heap stays: eight loads and unloads of the demo kept
    108 MB, with two heaps 67.
    """
    if sys.platform == "linux":
        limit = getattr(ctypes.CDLL(None), "mallopt", None)
        if limit is not None:
            limit(_M_ARENA_MAX, count)


def _anonymous() -> list[Range]:
    """Where this process has private memory of its own, no file behind it; empty where the system does not tell."""
    if sys.platform != "linux":
        return []
    ranges: list[Range] = []
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:  # noqa: PTH123
            for line in maps:
                place, rights, _, _, inode, *name = line.split()
                if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                    start, _, end = place.partition("-")
                    ranges.append((int(start, 16), int(end, 16)))
    except OSError:
        return []
    return ranges


def _resident(piece: Range) -> Iterator[Range]:
    """The large pages of a piece that are in memory whole; none where the system does not tell."""
    start, end = piece
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123
            pagemap.seek(start // _SMALL_PAGE * _ENTRY)
            entries = pagemap.read((end - start) // _SMALL_PAGE * _ENTRY)
    except OSError:
        return
    present = entries[_ENTRY - 1 :: _ENTRY]  # the highest byte of each, little-endian
    count = _HUGE_PAGE // _SMALL_PAGE
    first = start
    for at in range(start, end, _HUGE_PAGE):
        index = (at - start) // _SMALL_PAGE
        parts = present[index : index + count]
        if len(parts) < count or any(part < _PRESENT for part in parts):
            if first < at:
                yield first, at
            first = at + _HUGE_PAGE
    if first < end:
        yield first, end


def _without(ranges: list[Range], others: list[Range]) -> Iterator[Range]:
    """What of the ranges, both lists in order, no other covers; in one pass, as a process may have thousands."""
    at = 0  # of the others: those before it end before all that is left
    for start, end in ranges:
        while at < len(others) and others[at][0] < end:
            other_start, other_end = others[at]
            if start < other_start:
                yield start, other_start
            start = max(start, other_end)
            if other_end > end:
                break  # it may cover the next range too
            at += 1
        if start < end:
            yield start, end


def _pieces(ranges: Iterable[Range]) -> Iterator[Range]:
    """The whole large pages of ranges, in pieces, between which one can stop."""
    for start, end in ranges:
        first, last = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        for at in range(first, last, _PIECE):
            yield at, min(at + _PIECE, last)
