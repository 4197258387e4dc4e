"""One reply on its way to stdout: shown as it comes, stopped by Ctrl-C, its end and its cost said on stderr."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from embedllm.cancel import Cancel
from embedllm.cli.options import note
from embedllm.cli.progress import waiting
from embedllm.cli.text_writer import writer_of
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.completion import Completion, collect


def show(chunks: Iterable[Chunk], *, reasoning: bool = True, is_markdown: bool = True) -> Completion:
    """Writes each piece of text as soon as it is there, then the end of the line; the whole reply.

    reasoning: it goes to stderr, else nowhere. is_markdown: a terminal renders it. A terminal gets no control
    characters; a file or a pipe gets the text as it is.
    """
    with ReplyWriter(reasoning=reasoning, is_markdown=is_markdown) as writer:
        return collect(map(writer.push, chunks))


class ReplyWriter:
    """Writes the chunks of replies, as show() does; until the first one the terminal says what is going on."""

    def __init__(self, *, reasoning: bool, is_markdown: bool, waiting_for: str = "reading the prompt") -> None:
        self._reasoning, self._waiting_for = reasoning, waiting_for
        self._text = writer_of(sys.stdout, is_markdown=is_markdown)
        self._thoughts = writer_of(sys.stderr, is_dim=True)
        self._stack = contextlib.ExitStack()
        self._stop: Callable[[], object] = lambda: None

    def __enter__(self) -> ReplyWriter:
        self._stack.callback(self.end)
        self._stop = self._stack.enter_context(waiting(self._waiting_for))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def push(self, chunk: Chunk) -> Chunk:
        """Writes one; gives it back."""
        self._stop()
        if chunk.reasoning and self._reasoning:
            self._thoughts.push(chunk.reasoning)
        if chunk.text:
            self._thoughts.end()
            self._text.push(chunk.text)
        return chunk

    def end(self) -> None:
        """Ends the line, before something else is written."""
        self._stop()
        self._thoughts.end()
        self._text.end()


@contextlib.contextmanager
def stopped_by_ctrl_c(cancel: Cancel) -> Iterator[None]:
    """Within the block the first Ctrl-C cancels; a second one raises KeyboardInterrupt.

    Python runs a signal handler only once the C code that it is in returns, which for a step over a long prompt takes
    seconds. So a thread receives the signal at the same time, by the wake-up socket, and cancels.
    """
    in_main = threading.current_thread() is threading.main_thread()  # the only one that may set handlers
    if not in_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # ignored: started in the background
        yield
        return
    with _no_echo(), _watched(cancel):
        yield


@contextlib.contextmanager
def _no_echo() -> Iterator[None]:
    """Within the block a terminal does not write "^C" and what else is typed into the reply; it is read afterwards."""
    stdin = _own_terminal()
    if stdin is None:
        yield
        return
    import termios

    before = termios.tcgetattr(stdin)
    changed = [*before]
    changed[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(stdin, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)


def _own_terminal() -> int | None:
    """stdin, if it is a terminal whose settings this process may change; None on Windows."""
    try:
        import termios  # noqa: F401 - of Unix

        stdin = sys.stdin.fileno()
        # a job in the background would be stopped
        return stdin if os.isatty(stdin) and os.tcgetpgrp(stdin) == os.getpgrp() else None
    except (ImportError, OSError, ValueError):
        return None


@contextlib.contextmanager
def _watched(cancel: Cancel) -> Iterator[None]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    presses = 0

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt

    def watch() -> None:
        while received := ours.recv(64):
            if signal.SIGINT in received:
                cancel.cancel()

    watcher = threading.Thread(target=watch, name="ctrl-c", daemon=True)
    watcher.start()
    before = signal.signal(signal.SIGINT, count)
    woken = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGINT, before)
        theirs.close()
        watcher.join()
        ours.close()


def say_end(reply: Completion, context: int, *, remedy: str) -> None:
    """A line when a reply ended for another reason than that the model was done.

    remedy: what to do when the context is full.
    """
    count = reply.statistics.tokens
    if reply.finish_reason == "length":
        note(f"(truncated after {count} tokens; increase --max-tokens)")
    elif reply.finish_reason == "context":
        note(f"(truncated after {count} tokens: the context of {context} tokens is full; {remedy})")
    elif reply.finish_reason == "cancelled":
        note(f"(stopped after {count} tokens)")


def say_statistics(statistics: Statistics) -> None:
    """Tokens and times, in one line."""
    dropped = f"; dropped: {statistics.dropped_tokens} tokens" if statistics.dropped_tokens else ""
    cached = f", {statistics.cached_tokens} of them cached" if statistics.cached_tokens else ""
    note(
        f"prompt: {statistics.prompt_tokens} tokens{cached}, {statistics.prefill_s:.2f} s "
        f"({statistics.prefill_tokens_s:.0f} tokens/s); reply: {statistics.tokens} tokens, {statistics.decode_s:.2f} s "
        f"({statistics.decode_tokens_s:.1f} tokens/s){dropped}"
    )
