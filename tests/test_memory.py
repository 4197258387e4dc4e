"""Pages and freed memory: on Linux for real, elsewhere that nothing happens."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from embedllm.backends import memory
from embedllm.backends.memory import _without, on_huge_pages, return_freed_memory

SIZE = 32 << 20  # bytes


@pytest.mark.parametrize(
    ("ranges", "others", "left"),
    [
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(3, 5)], [(0, 3), (5, 10)]),
        ([(0, 10)], [(0, 4), (6, 20)], [(4, 6)]),
        ([(5, 10), (20, 30)], [(0, 6), (25, 40)], [(6, 10), (20, 25)]),
        ([(5, 10)], [(10, 20)], [(5, 10)]),
    ],
)
def test_what_was_there_before_is_left_out(
    ranges: list[memory.Range], others: list[memory.Range], left: list[memory.Range]
) -> None:
    assert list(_without(ranges, others)) == left


def huge_kib() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


def has_huge_pages() -> bool:
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    release = Path("/proc/sys/kernel/osrelease")
    if not mode.exists() or not release.exists():
        return False
    return "[madvise]" in mode.read_text() and tuple(map(int, release.read_text().split(".")[:2])) >= (6, 1)


@pytest.mark.skipif(not has_huge_pages(), reason="the system gives no huge pages when it is asked for them")
def test_memory_of_the_block_lies_on_huge_pages() -> None:
    before = huge_kib()
    with on_huge_pages():
        inside = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        inside.write(b"x" * SIZE)
    gained = huge_kib() - before
    assert gained >= SIZE // 1024 // 2
    inside.close()


@pytest.mark.skipif(not has_huge_pages(), reason="the system gives no huge pages when it is asked for them")
def test_memory_from_before_the_block_is_left_alone() -> None:
    earlier = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    earlier.write(b"x" * SIZE)
    before = huge_kib()
    with on_huge_pages():
        pass
    assert huge_kib() <= before
    earlier.close()


def test_other_systems_are_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: pytest.fail("no library is to be called"))
    with on_huge_pages():
        pass
    return_freed_memory()
