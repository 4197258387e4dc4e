"""Which of two ways of stepping is the faster one, by the clock: GPUs, models and hosts differ.

Sampled steps run one by one or ahead of the host, those of several sequences in turns or together.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

_log = logging.getLogger("embedllm")
_WINDOW, _WINDOWS = 8, 3  # steps that are timed together; windows of each way, of which the median counts
_GAIN = 0.97  # of the time of the first way: more than that is not worth the work that may be thrown away


class Pace:
    """Tries both ways on the first steps behind a load, and keeps to the faster one.

    Time is taken from one step to the next, so with what the host does between them.
    """

    def __init__(self, what: str, ways: tuple[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        """what, ways: they are called in the log, as "sampled steps", and "one by one" and "ahead"."""
        self._what, self._ways, self._clock = what, ways, clock
        self._times: dict[bool, list[float]] = {False: [], True: []}  # of windows of either way
        self._is_second: bool | None = None  # the faster one
        self._before = (0, -1, False)  # the latest step: its session, its position, and its way
        self._started, self._steps = 0.0, 0

    @property
    def is_second(self) -> bool:
        """Whether the next step is to be done in the second way."""
        if self._is_second is not None:
            return self._is_second
        return len(self._times[False]) > _WINDOWS  # the first window of each warms up

    def note(self, session: int, position: int) -> None:
        """Takes the time of a step that begins, at a position of a session, in the way of `is_second`.

        session: what tells it, or several that step, from others.
        """
        if self._is_second is not None:
            return
        step, now = (session, position, self.is_second), self._clock()
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
        firsts, seconds = self._times[False][1:], self._times[True][1:]
        if len(seconds) < _WINDOWS:
            return
        one, other = statistics.median(firsts) / _WINDOW, statistics.median(seconds) / _WINDOW
        self._is_second = other < _GAIN * one
        first, second = self._ways
        _log.info(
            "%s run %s: %.3g ms a step %s, %.3g %s",
            self._what, second if self._is_second else first, 1e3 * one, first, 1e3 * other, second,
        )  # fmt: skip
