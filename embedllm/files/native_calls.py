"""Calls of a runtime outside the engine loop, in threads of the application; the end of the process waits for them.

Before Python 3.14 the interpreter ends a daemon thread where it comes back from such code; in C++ and Rust that aborts
the process. Standard library only.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from embedllm.errors import DeviceError

END_S = 5.0  # at most, that the end of the process waits
ENDING = "the process is ending, and the model with it."
_running: set[Event] = set()
_ending = Event()


@contextmanager
def native_call() -> Iterator[None]:
    """Around a call that the end of the process waits for. Raises DeviceError when that has begun."""
    done = Event()
    try:
        _running.add(done)  # first: whoever is not refused is waited for
        check_not_ending()
        yield
    finally:
        _running.discard(done)
        done.set()


def check_not_ending() -> None:
    """Raises DeviceError when the process is ending; for long calls, too, between two of their steps."""
    if _ending.is_set():
        raise DeviceError(ENDING)


def end_calls() -> None:
    """Begins no more calls, and waits for those that run; the second time, for none."""
    if _ending.is_set():
        return
    _ending.set()
    deadline = time.monotonic() + END_S
    for done in [*_running]:
        done.wait(max(0.0, deadline - time.monotonic()))


atexit.register(end_calls)  # the engine loop calls it, too: before its own end, as a load makes a loop
if sys.platform not in ("win32", "emscripten"):
    os.register_at_fork(after_in_child=_running.clear)  # their threads are not there
