"""Cancel: ends a call from another thread or task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancel:
    """A switch that ends generations from any thread, in the middle of a prompt too. It cannot be switched back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may cancel in the thread that has it
        self._cancelled = False
        self._interrupts: list[Callable[[bool], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether cancel() was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End every generation that was given this switch; it gives its text so far and "cancelled"."""
        with self._lock:
            self._cancelled = True
            for interrupt in self._interrupts:
                interrupt(True)

    def when_cancelled(self, act: Callable[[], None]) -> None:
        """Has this done in cancel(), in its thread."""
        with self._lock:
            self._interrupts.append(lambda stop: act())
            if self._cancelled:
                act()

    @contextmanager
    def watching(self, interrupt: Callable[[bool], None]) -> Iterator[None]:
        """Within the block, cancel() calls interrupt(True); at its end comes interrupt(False)."""
        with self._lock:
            self._interrupts.append(interrupt)
            if self._cancelled:
                interrupt(True)
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
                interrupt(False)

    @contextmanager
    def passed_on(self) -> Iterator[Cancel]:
        """Within the block, this one switches another, too, which can be switched by itself."""
        other = Cancel()

        def pass_on(stop: bool) -> None:
            if stop:
                other.cancel()

        with self.watching(pass_on):
            yield other


def given_or_own(cancel: Cancel | None) -> Cancel:
    """The switch that a call was given, or one of its own. Raises TypeError for anything else."""
    if cancel is not None and not isinstance(cancel, Cancel):
        raise TypeError(f"cancel is {cancel!r}; expected an embedllm.Cancel, whose cancel() ends the call, or None.")
    return cancel or Cancel()
