"""KeyboardInterrupts that come at a moment of their own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class Interrupts:
    """Calls that a KeyboardInterrupt ends, as Ctrl-C does; within its block. POSIX, in the main thread."""

    def __enter__(self) -> Interrupts:
        self._is_armed = False
        self._before = signal.signal(signal.SIGALRM, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # the last signal may be on its way to another thread: it is forgotten when it is ignored, or else would end the
        # process once its action is the usual one again
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self._before)

    def during(self, call: Callable[[], object], after_s: float) -> bool:
        """Whether it was interrupted, that many seconds after it began."""
        try:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, after_s))
            call()
            self._is_armed = False
        except KeyboardInterrupt:
            return True
        return False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The signal may come long after the timer: it is another thread that the system gives it to."""
        if self._is_armed:
            self._is_armed = False
            raise KeyboardInterrupt
