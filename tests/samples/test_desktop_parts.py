"""The desktop sample's parts that need no Qt: the model's thread, the store, the tools, the guide that shows them."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedllm
from samples.desktop import tools
from samples.desktop.core import ModelThread
from samples.desktop.store import NO_TITLE, Entry, Store

ROOT = Path(__file__).parents[2]
SAID: tuple[embedllm.Message, ...] = (
    {"role": "user", "content": "list files"},
    {"role": "assistant", "content": "ls"},
)


class Told:
    """What a thread told, in order."""

    def __init__(self) -> None:
        self.events: SimpleQueue[object] = SimpleQueue()

    def until(self, kind: type) -> list[object]:
        """Everything up to the first event of a kind, and that."""
        found: list[object] = []
        while not found or not isinstance(found[-1], kind):
            found.append(self.events.get(timeout=60))
        return found


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def thread(told: Told) -> Iterator[ModelThread]:
    made = ModelThread(told.events.put)
    yield made
    made.close()
    made.join()


@pytest.mark.skipif(os.environ.get("EMBEDLLM_REQUIRE_QT") != "1", reason="Qt is not required (EMBEDLLM_REQUIRE_QT=1)")
def test_qt_is_here_where_it_is_required() -> None:
    """Where it is not, the tests of the window are skipped."""
    import PySide6.QtWidgets

    assert PySide6.QtWidgets.QApplication


def test_the_guide_shows_the_core_as_it_is() -> None:
    guide = (ROOT / "docs" / "guide-embed.md").read_text(encoding="utf-8")
    first = re.search(r"^```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    core = (ROOT / "samples" / "desktop" / "core.py").read_text(encoding="utf-8")
    assert first is not None
    assert first[1] == core.split("\n\n", 2)[2]


def test_jobs_run_one_after_the_other_in_one_thread(thread: ModelThread, told: Told) -> None:
    ran: list[tuple[int, threading.Thread]] = []
    for number in range(20):
        thread.do(lambda cancel, number=number: ran.append((number, threading.current_thread())))
    thread.do(lambda cancel: thread.tell("done"))
    told.until(str)
    assert [number for number, _ in ran] == list(range(20))
    assert {where for _, where in ran} != {threading.current_thread()}
    assert len({where for _, where in ran}) == 1


def test_an_error_is_told_and_the_next_job_runs(thread: ModelThread, told: Told) -> None:
    thread.do(lambda cancel: thread.say("hello", cancel))
    thread.do(lambda cancel: thread.load("no such folder"))
    thread.do(lambda cancel: thread.tell("still here"))
    first, second, third = told.until(str)
    assert isinstance(first, ValueError)
    assert "no model is loaded" in str(first)
    assert isinstance(second, embedllm.PackageError)
    assert third == "still here"


def test_stop_cancels_what_waits_and_not_what_comes_later(thread: ModelThread, told: Told) -> None:
    held = threading.Event()
    seen: list[bool] = []
    thread.do(lambda cancel: held.wait(60))
    thread.do(lambda cancel: seen.append(cancel.cancelled))
    thread.stop()
    thread.do(lambda cancel: seen.append(cancel.cancelled))
    thread.do(lambda cancel: thread.tell("done"))
    held.set()
    told.until(str)
    assert seen == [True, False]


def test_close_does_what_waits_and_tells_the_end(told: Told) -> None:
    thread = ModelThread(told.events.put)
    thread.do(lambda cancel: thread.load("demo", "cpu"))
    thread.do(lambda cancel: thread.tell("last"))
    thread.close()
    model, last, end = told.until(type(None))
    assert isinstance(model, embedllm.Model)
    assert (last, end) == ("last", None)
    thread.join()
    with pytest.raises(ValueError, match="closed"):
        model.generate("ls", max_tokens=1)


def test_a_loaded_model_takes_the_place_of_the_one_before(thread: ModelThread, told: Told) -> None:
    for _ in range(2):
        thread.do(lambda cancel: thread.load("demo", "cpu"))
    (first,), (second,) = told.until(embedllm.Model), told.until(embedllm.Model)
    assert "closed" in repr(first)
    assert "on cpu" in repr(second)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    entry = Entry().with_messages(SAID)
    store.write(entry)
    assert Store(tmp_path / "new").entries() == ([entry], [])
    assert entry.title == "list files"
    assert Entry().title == NO_TITLE
    if os.name == "posix":
        assert (tmp_path / "new" / f"{entry.id}.json").stat().st_mode & 0o077 == 0  # nobody else's to read


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    entry = Entry().with_messages(SAID)
    store.write(entry)

    def fail(number: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        store.write(entry.with_messages([*SAID, *SAID]))
    assert store.entries() == ([entry], [])
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "[" * 100_000, "\udcff", '{"version": 2}', '{"version": 1, "title": "a", "changed": 0}']
    + [json.dumps({"version": 1, "title": "a", "changed": 0, "messages": said}) for said in (1, ["a"], [{}])]
    + ['{"version": 1, "title": "a", "changed": "x", "messages": []}'],
)
def test_a_damaged_file_is_named_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    good = Entry().with_messages(SAID)
    store.write(good)
    (tmp_path / "odd.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    entries, (problem,) = store.entries()
    assert entries == [good]
    assert "odd.json" in problem
    with pytest.raises(ValueError, match="odd"):
        store.rename("odd", "better")
    assert (tmp_path / "odd.json").read_bytes() == text.encode("utf-8", "surrogateescape")


def test_the_oldest_kv_goes_when_all_of_it_is_too_large(tmp_path: Path) -> None:
    store = Store(tmp_path, kv_bytes=25)
    for place, name in enumerate(["old", "middle", "new"]):
        store.kv_file(name).write_bytes(bytes(10))
        os.utime(store.kv_file(name), (place, place))
    store.prune()
    assert [store.kv_file(name).exists() for name in ("old", "middle", "new")] == [False, True, True]


def test_delete_takes_both_files_and_rename_makes_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    entry = Entry().with_messages(SAID)
    store.write(entry)
    store.kv_file(entry.id).write_bytes(b"")
    store.delete(entry.id)
    store.rename(entry.id, "gone")
    assert not list(tmp_path.iterdir())


@given(st.recursive(st.integers(0, 99).map(str), lambda part: st.tuples(part, st.sampled_from("+-*"), part).map(
    lambda parts: f"({' '.join(parts)})"), max_leaves=8))  # fmt: skip
def test_the_calculator_computes_what_python_does(expression: str) -> None:
    assert float(tools.calculator(expression)) == pytest.approx(eval(expression), rel=1e-11)


@pytest.mark.parametrize("text", ["", "2 +", "__import__('os')", "a", "1 / 0", "True", "(" * 199, "1" * 201, "'a' * 3"])
def test_the_calculator_refuses_the_rest(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        tools.calculator(text)
