"""A reply on its way to stdout, without a model."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from embedllm.cancel import Cancel
from embedllm.cli import progress
from embedllm.cli.reply_output import show, stopped_by_ctrl_c
from embedllm.generation.chunk import Chunk, Statistics

DEADLINE = 120  # seconds, far beyond what a thread needs to wake up
ESCAPES = "a\x1b[2Jb\x07\x9bc\td\r\ne"


@pytest.fixture
def sigint() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def chunks(*texts: str) -> Iterator[Chunk]:
    statistics = Statistics(prompt_tokens=1, cached_tokens=0)
    for text in texts:
        yield Chunk(text=text, token=1, logprob=0.0, statistics=statistics)


@pytest.mark.usefixtures("sigint")
def test_the_first_ctrl_c_cancels_and_the_second_interrupts() -> None:
    cancel, cancelled = Cancel(), threading.Event()

    def press_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        assert cancelled.wait(DEADLINE)
        signal.raise_signal(signal.SIGINT)

    with cancel.watching(lambda _: cancelled.set()), stopped_by_ctrl_c(cancel), pytest.raises(KeyboardInterrupt):
        press_twice()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.usefixtures("sigint")
def test_ctrl_c_cancels_while_the_main_thread_is_in_c_code() -> None:
    """No Python handler runs before that call returns, and it returns only after the switch was seen."""
    cancel, seen, running = Cancel(), [], True
    with cancel.watching(lambda _: seen.append(running)), stopped_by_ctrl_c(cancel):
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 6_000_000)  # a second, without the interpreter's lock
        running = False
    assert seen[0]


@pytest.mark.usefixtures("sigint")
def test_without_ctrl_c_nothing_changes() -> None:
    cancel = Cancel()
    with stopped_by_ctrl_c(cancel):
        pass
    assert not cancel.cancelled
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    cancel = Cancel()
    try:
        with stopped_by_ctrl_c(cancel):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not cancel.cancelled


def test_another_thread_has_no_ctrl_c() -> None:
    """Signal handlers belong to the main thread; elsewhere the block does nothing, and raises nothing."""
    ended: list[bool] = []

    def reply() -> None:
        with stopped_by_ctrl_c(Cancel()):
            ended.append(True)

    thread = threading.Thread(target=reply)
    thread.start()
    thread.join()
    assert ended == [True]


def test_a_file_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(chunks("a", "", ESCAPES)).text == "a" + ESCAPES
    assert capsys.readouterr().out == "a" + ESCAPES + "\n"


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert show(chunks(ESCAPES)).text == ESCAPES
    assert terminal.getvalue() == "a␛[2Jb␇\ufffdc\td␍\ne\n"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert show(chunks(ESCAPES)).text == ESCAPES
    assert terminal.getvalue() == "a␛[2Jb␇\ufffdc    d␍\ne\n"


@pytest.mark.parametrize(
    ("is_markdown", "no_color", "expected"),
    [
        (True, "", "\x1b[1ma\x1b[0m \x1b[36m`b`\x1b[0m\n"),
        (True, "1", "\x1b[1ma\x1b[0m `b`\n"),
        (False, "", "**a** `b`\n"),
    ],
)
def test_a_terminal_renders_markdown(
    monkeypatch: pytest.MonkeyPatch, is_markdown: bool, no_color: str, expected: str
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert show(chunks("**a*", "* `b`"), is_markdown=is_markdown).text == "**a** `b`"
    assert terminal.getvalue() == expected


def test_a_pipe_gets_markdown_as_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    show(chunks("# **a**\n", "```\nb\n```"))
    assert capsys.readouterr().out == "# **a**\n```\nb\n```\n"


def test_reasoning_is_dim_and_folded_and_ends_before_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "12")
    both = Terminal()
    monkeypatch.setattr(sys, "stdout", both)
    monkeypatch.setattr(sys, "stderr", both)
    monkeypatch.setattr("embedllm.cli.reply_output.waiting", lambda text: contextlib.nullcontext(lambda: None))
    statistics = Statistics(prompt_tokens=1, cached_tokens=0)
    thought = Chunk(text="", reasoning="first think of it", token=1, logprob=0.0, statistics=statistics)
    show(iter([thought, *chunks("done")]))
    dim = [f"\x1b[2m{word}\x1b[0m" for word in ("first", "think", "of", "it")]
    assert both.getvalue() == f"{dim[0]} {dim[1]}\n{dim[2]} {dim[3]}\ndone\n"


def test_the_line_is_ended_once(capsys: pytest.CaptureFixture[str]) -> None:
    show(chunks("a\n"))
    assert capsys.readouterr().out == "a\n"


def test_the_line_is_ended_when_the_reply_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def failing() -> Iterator[Chunk]:
        yield from chunks("a")
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        show(failing())
    assert capsys.readouterr().out == "a\n"


def test_what_takes_long_is_said_at_a_terminal_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_QUIET_S", 0.01)
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    end_s = time.monotonic() + DEADLINE
    with progress.waiting("reading the prompt") as stop:
        while "reading the prompt" not in screen.getvalue():
            assert time.monotonic() < end_s
            time.sleep(0.01)
        stop()
        assert screen.getvalue().endswith("\x1b[2K")  # the line is empty again
    shown = screen.getvalue()
    monkeypatch.setattr(progress, "_QUIET_S", DEADLINE)
    with progress.waiting("what is quick"):
        pass
    assert screen.getvalue() == shown


@pytest.mark.parametrize("screen", [io.StringIO(), Terminal()])
def test_nothing_is_said_where_it_could_not_be_cleared(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress.waiting("reading the prompt"):
        time.sleep(0.05)
    assert not screen.getvalue()
