"""Pages and freed memory: on Linux for real, elsewhere that nothing happens."""

from __future__ import annotations

import mmap
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends.system import host_memory, host_tuning
from embedllm.backends.system.host_memory import (
    HugePages,
    _pieces,
    _without,
    limit_heaps,
    return_freed_memory,
    trim_heap,
)

MIB = 1 << 20
SIZE = 32 * MIB


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
    ranges: list[host_memory.Range], others: list[host_memory.Range], left: list[host_memory.Range]
) -> None:
    assert list(_without(ranges, others)) == left


def in_order(parts: st.DataObject, name: str) -> list[host_memory.Range]:
    ends = sorted(parts.draw(st.sets(st.integers(0, 60), max_size=24), label=name))
    return list(zip(ends[::2], ends[1::2], strict=False))


@given(st.data())
def test_any_ranges_lose_what_others_cover_and_nothing_else(parts: st.DataObject) -> None:
    ranges, others = in_order(parts, "ranges"), in_order(parts, "others")
    expected = {i for start, end in ranges for i in range(start, end)} - {
        i for start, end in others for i in range(start, end)
    }
    left = list(_without(ranges, others))
    assert [i for start, end in left for i in range(start, end)] == sorted(expected)
    assert all(start < end for start, end in left)


def test_mappings_by_the_ten_thousand_are_compared_in_one_pass() -> None:
    class Counted(list[host_memory.Range]):
        reads = 0

        def __getitem__(self, at: int) -> host_memory.Range:  # type: ignore[override]
            self.reads += 1
            return super().__getitem__(at)

    before = Counted((i, i + 1) for i in range(0, 20_000, 2))
    assert list(_without([(0, 1), (1, 5), (10_000, 20_000)], before))[:2] == [(1, 2), (3, 4)]
    assert before.reads < 3 * len(before)


def huge_kib() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


def has_huge_pages() -> bool:
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    release = Path("/proc/sys/kernel/osrelease")
    if not mode.exists() or not release.exists():
        return False
    return "[madvise]" in mode.read_text() and tuple(map(int, release.read_text().split(".")[:2])) >= (6, 1)


@pytest.mark.parametrize(
    ("ranges", "pieces"),
    [
        ([], []),
        ([(MIB, 2 * MIB)], []),  # no whole page in it
        ([(MIB, 7 * MIB)], [(2 * MIB, 6 * MIB)]),
        ([(0, 2 * MIB), (4 * MIB, 24 * MIB)], [(0, 2 * MIB), (4 * MIB, 12 * MIB), (12 * MIB, 20 * MIB),
                                               (20 * MIB, 24 * MIB)]),
    ],
)  # fmt: skip
def test_pieces_are_whole_pages_and_not_too_many(
    ranges: list[host_memory.Range], pieces: list[host_memory.Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "_PIECE", 8 * MIB)
    assert list(_pieces(ranges)) == pieces


@pytest.mark.skipif(not has_huge_pages(), reason="the system gives no huge pages when it is asked for them")
def test_memory_of_the_block_lies_on_huge_pages() -> None:
    before = huge_kib()
    with HugePages() as pages:
        inside = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        inside.write(b"x" * SIZE)
    pages.wait()
    gained = huge_kib() - before
    assert gained >= SIZE // 1024 // 2
    inside.close()


@pytest.mark.skipif(not has_huge_pages(), reason="the system gives no huge pages when it is asked for them")
def test_memory_from_before_the_block_is_left_alone() -> None:
    earlier = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    earlier.write(b"x" * SIZE)
    before = huge_kib()
    with HugePages() as pages:
        pass
    pages.wait()
    assert huge_kib() <= before
    earlier.close()


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is moved elsewhere")
def test_nothing_is_asked_for_memory_that_is_about_to_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, first, going_on = [], threading.Event(), threading.Event()

    class Library:
        def __init__(self, _: None) -> None: ...

        @staticmethod
        def madvise(start: int, *_: int) -> None:
            asked.append(start)
            first.set()
            going_on.wait(120)

    monkeypatch.setattr(host_memory, "_PIECE", 8 * MIB)
    monkeypatch.setattr(host_memory.ctypes, "CDLL", Library)
    pages = HugePages()
    with pages:
        inside = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        inside.write(b"x" * SIZE)
    assert first.wait(120)
    threading.Timer(0.05, going_on.set).start()
    pages.stop()
    assert len(set(asked)) == 1  # of at least three pieces
    inside.close()


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is moved elsewhere")
def test_a_prompt_that_is_read_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first prompt behind a load takes up to twice as long, on two cores."""
    asked = []

    class Library:
        def __init__(self, _: None) -> None: ...

        @staticmethod
        def madvise(start: int, *_: int) -> None:
            asked.append(start)

    monkeypatch.setattr(host_memory.ctypes, "CDLL", Library)
    pages = HugePages()
    with pages.beside(128):
        with pages:
            inside = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            inside.write(b"x" * SIZE)
        with pages.beside(128):  # of another sequence
            pass
        time.sleep(0.2)
        assert not asked
    pages.wait()
    assert asked
    inside.close()

    with pages.beside(128):
        with pages:
            inside = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            inside.write(b"x" * SIZE)
        pages.stop()  # does not wait for the prompt
    inside.close()


@pytest.mark.skipif(not has_huge_pages(), reason="the system gives no huge pages when it is asked for them")
def test_memory_that_is_not_resident_is_left_alone() -> None:
    """Else memory of the application that was allocated meanwhile, and never written, would be filled with zeros."""
    before = huge_kib()
    with HugePages() as pages:
        inside = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, SIZE, 64 << 10):  # a byte in every 16th page
            inside[at] = 1
    pages.wait()
    assert huge_kib() - before < SIZE // 1024 // 4
    inside.close()


def test_nothing_is_moved_where_the_switch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_tuning.SWITCH, "trim")
    monkeypatch.setattr(host_memory, "_anonymous", lambda: pytest.fail("no mapping is to be looked for"))
    with HugePages() as pages:
        pass
    pages.stop()


@pytest.mark.parametrize(
    ("given", "on"),
    [
        ("", {"pages"}),
        ("none", set[str]()),
        ("trim", {"trim"}),
        (" Pages, quiet ", {"pages", "quiet"}),
        ("all", {"pages", "trim", "quiet", "environment"}),
        ("nothing", set[str]()),
    ],
)
def test_the_switch_names_what_is_on(given: str, on: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_tuning.SWITCH, given)
    assert {name for name in ("pages", "trim", "quiet", "environment") if host_tuning.is_on(name)} == on


def test_the_heap_is_trimmed_only_where_the_switch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(host_tuning.SWITCH, raising=False)
    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda _: pytest.fail("no library is to be called"))
    return_freed_memory()


def test_a_block_that_fails_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda _: pytest.fail("no library is to be called"))
    with pytest.raises(ValueError, match="inside"), HugePages() as pages:
        raise ValueError("inside")
    pages.wait()


def test_other_systems_are_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda _: pytest.fail("no library is to be called"))
    with HugePages() as pages:
        pass
    pages.stop()
    return_freed_memory()
    trim_heap()
    limit_heaps(2)


def test_a_switch_with_an_unknown_name_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(host_tuning.SWITCH, "trim,once only")
    assert [host_tuning.is_on("trim") for _ in range(3)] == [True] * 3
    assert [record.message for record in caplog.records if "once only" in record.message] == [
        "EMBEDLLM_HOST_TUNING has ['once only']; expected all, none, or some of environment, pages, quiet, trim"
    ]
