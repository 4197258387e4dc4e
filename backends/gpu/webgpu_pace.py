"""Whether sampled steps are faster ahead of the host or one by one, by the clock: GPUs, models and hosts differ."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

_log = logging.getLogger("embedllm")
_WINDOW, _WINDOWS = 8, 3  # steps that are timed together; windows of each way, of which the median counts
_GAIN = 0.97  # of the time one by one: more than that is not worth the work that may be thrown away


class Pace:
    """Tries both ways on the first sampled steps behind a load, and keeps to the faster one.

    The text is the same by either. Time is taken from one step to the next, so with what the host does between them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[bool, list[float]] = {False: [], True: []}  # of windows, one by one and ahead
        self._is_faster_ahead: bool | None = None
        self._before = (0, -1, False)  # the latest step: its session, its position, and whether it ran ahead
        self._started, self._steps = 0.0, 0

    @property
    def is_ahead(self) -> bool:
        """Whether the next step is to run ahead."""
        if self._is_faster_ahead is not None:
            return self._is_faster_ahead
        return len(self._times[False]) > _WINDOWS  # the first window of each warms up

    def note(self, session: int, position: int) -> None:
        """Takes the time of a step that begins, at a position of a session, in the way of `is_ahead`."""
        if self._is_faster_ahead is not None:
            return
        step, now = (session, position, self.is_ahead), self._clock()
        follows = step == (self._before[0], self._before[1] + 1, self._before[2])
        self._before = step
        if not follows:  # a prompt, another session or nothing at all lay between
            self._started, self._steps = now, 0
            return
        self._steps += 1
        if self._steps == _WINDOW:
            self._times[step[2]].append(now - self._started)
            self._started, self._steps = now, 0
            self._decide()

    def _decide(self) -> None:
        singly, ahead = self._times[False][1:], self._times[True][1:]
        if len(ahead) < _WINDOWS:
            return
        one, other = statistics.median(singly) / _WINDOW, statistics.median(ahead) / _WINDOW
        self._is_faster_ahead = other < _GAIN * one
        _log.info(
            "sampled steps run %s: %.3g ms a token one by one, %.3g ahead",
            "ahead" if self._is_faster_ahead else "one by one", 1e3 * one, 1e3 * other,
        )  # fmt: skip
