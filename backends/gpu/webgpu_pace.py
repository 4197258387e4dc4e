"""Which way of stepping is the fastest one, by the clock: GPUs, models and hosts differ.

Sampled steps run one by one or ahead of the host, those of several sequences in turns or in batches of some width.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence

_log = logging.getLogger("embedllm")
_WINDOW, _WINDOWS = 8, 3  # steps that are timed together; windows of each way, of which the median counts
_GAIN = 0.97  # of the time of a way before: more than that is not worth the work that may be thrown away


class Pace:
    """Tries all ways on the first steps behind a load, and keeps to the fastest one.

    Time is taken from one step to the next, so with what the host does between them.
    """

    def __init__(self, what: str, ways: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """what, ways: they are called in the log, as "sampled steps", and "one by one" and "ahead"."""
        self._what, self._clock = what, clock
        self._times: dict[str, list[float]] = {way: [] for way in ways}  # of windows of each way
        self._chosen: str | None = None
        self._before = (0, -1, "")  # the latest step: its session, its position, and its way
        self._started, self._steps = 0.0, 0

    @property
    def way(self) -> str:
        """The one in which the next step is to be done."""
        if self._chosen is not None:
            return self._chosen
        return next(way for way, times in self._times.items() if len(times) <= _WINDOWS)  # the first window warms up

    def note(self, session: int, position: int) -> None:
        """Takes the time of a step that begins, at a position of a session, in that way.

        session: what tells it, or several that step, from others.
        """
        if self._chosen is not None:
            return
        step, now = (session, position, self.way), self._clock()
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
        if any(len(times) <= _WINDOWS for times in self._times.values()):
            return
        each = {way: statistics.median(times[1:]) / _WINDOW for way, times in self._times.items()}
        chosen = next(iter(each))
        for way, seconds in each.items():
            if seconds < _GAIN * each[chosen]:
                chosen = way
        self._chosen = chosen
        _log.info(
            "%s run %s: %s", self._what, chosen,
            ", ".join(f"{1e3 * seconds:.3g} ms a step {way}" for way, seconds in each.items()),
        )  # fmt: skip
