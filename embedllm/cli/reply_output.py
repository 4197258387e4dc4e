"""One reply on its way to stdout: shown as it comes, stopped by Ctrl-C, its end and its cost said on stderr."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

from embedllm.cancel import Cancel
from embedllm.cli.options import note
from embedllm.cli.progress import waiting
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.completion import Completion, collect

# what would move the cursor, change the clipboard and so on, as its picture: "␛"; lines and tabs stay as they are
_PICTURES = {n: 0x2400 + n for n in range(32) if chr(n) not in "\n\t"} | dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)


def show(chunks: Iterable[Chunk], *, reasoning: bool = True) -> Completion:
    """Writes each piece of text as soon as it is there, then the end of the line; the whole reply.

    reasoning: it goes to stderr, else nowhere. A terminal gets no control characters; a file or a pipe gets the text as
    it is.
    """
    pictures = _PICTURES if sys.stdout.isatty() else {}
    kept: list[Chunk] = []
    last = "\n"
    try:
        for chunk in _announced(chunks):
            kept.append(chunk)
            if chunk.reasoning and reasoning:
                sys.stderr.write(chunk.reasoning.translate(_PICTURES))
                sys.stderr.flush()
            if chunk.text:
                last = chunk.text
                sys.stdout.write(chunk.text.translate(pictures))  # click.echo would take escapes out of a file's text
                sys.stdout.flush()
    finally:
        if not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
    return collect(kept)


def _announced(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The chunks; until the first one the terminal says what the model is at."""
    with waiting("reading the prompt") as stop:
        for chunk in chunks:
            stop()
            yield chunk


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
