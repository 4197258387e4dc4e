"""The cost model of speculative decoding: the cost of steps of several tokens, and the acceptance rate.

Standard library only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

_KEPT = 9  # clocked steps of one token, whose median counts
_NEEDED = 3
_ODD = 1.5  # times what was expected, or one part: more is a hiccup of the machine, and counts as so much
_RATE = 0.2  # how far an observation moves what is expected
_FIRST_RATE = 0.5  # the same for the first step of that many tokens
_STALE = 24  # steps; re-measure a single-token step after this many: the baseline drifts with system load
_FADING = 0.95  # of the guesses that were seen, with each new one
_COUNTS = (2, 4, 8, 16, 32)  # tokens of the steps whose cost is kept; the others lie between
_FIRST = (1.1, 1.4, 2.0, 3.5, 7.0)  # before anything was clocked: a little more than a CPU takes


class StepCosts:
    """What a step that feeds several tokens takes, in steps of one token; learned from the clock."""

    def __init__(self) -> None:
        self.step_s = 0.0  # of one token
        self.draft = 0.1  # a step of the draft model
        self._rewound = 0.0
        self._singles: deque[float] = deque(maxlen=_KEPT)
        self._drafts: deque[float] = deque(maxlen=_KEPT)
        self._costs = list(_FIRST)
        self._most = 0  # tokens of the largest step so far
        self._since_single = 0  # steps

    @property
    def is_known(self) -> bool:
        """Whether enough was clocked to compare with."""
        return len(self._singles) >= _NEEDED

    @property
    def is_draft_known(self) -> bool:
        return len(self._drafts) >= _NEEDED

    @property
    def is_stale(self) -> bool:
        """Whether a step of one token is to be clocked again."""
        return self._since_single >= _STALE

    @property
    def rewound(self) -> float:
        """What the step after a rewind takes more."""
        return max(0.0, self._rewound)  # the mean of a noise around nothing is below it as often as above

    def of(self, fed: int) -> float:
        """The cost of a step that feeds `fed` tokens, 1 to 32."""
        if fed == 1:
            return 1.0
        above, share = _between(fed)
        return max(1.0, self._costs[above] * share + self._costs[above - 1] * (1 - share))

    def clipped(self, seconds: float, expected: float) -> float:
        """The cost of a step of that duration, without outliers."""
        return min(max(seconds / self.step_s, expected / _ODD), expected * _ODD)

    def note(self, fed: int, seconds: float, *, is_rewound: bool) -> None:
        """Takes a step; is_rewound: something was rewound before it."""
        self._since_single += 1
        if fed == 1 and (not is_rewound or self.is_stale):
            self._singles.append(seconds - is_rewound * self.rewound * self.step_s)
            self.step_s = _median(self._singles)
            self._since_single = 0
            return
        if not self.is_known:
            return
        expected = self.of(fed)
        if is_rewound:
            self._rewound += 0.1 * (self.clipped(seconds, expected + self.rewound) - expected - self._rewound)
            return
        change = (_RATE if fed <= self._most else _FIRST_RATE) * (self.clipped(seconds, expected) - expected)
        above, share = _between(fed)
        self._costs[above] += change * share
        self._costs[above - 1] += change * (1 - share)
        self._most = max(self._most, fed)
        self._extrapolate(bisect_left(_COUNTS, self._most))
        for place in range(len(_COUNTS)):
            # more tokens never cost less: else noise below the least cost, which of() cuts off, would add up for good
            self._costs[place] = max(self._costs[place], self._costs[place - 1] if place else 1.0)

    def _extrapolate(self, tried: int) -> None:
        """Costs of more tokens than were tried, up to that place: along a line, or as much off as the first."""
        off = self._costs[0] - _FIRST[0]
        slope = (self._costs[tried] - self._costs[tried - 1]) / (_COUNTS[tried] - _COUNTS[tried - 1]) if tried else 0.0
        for place in range(tried + 1, len(_COUNTS)):
            count = _COUNTS[place]
            line = self._costs[tried] + slope * (count - _COUNTS[tried])
            self._costs[place] = line if tried else _FIRST[place] + off * count / _COUNTS[0]

    def note_draft(self, seconds: float) -> None:
        """Takes a step of the draft model."""
        self._drafts.append(seconds)
        if self.step_s:
            self.draft = _median(self._drafts) / self.step_s


class Acceptance:
    """The acceptance rate per kind of draft token; the latest ones count most."""

    def __init__(self, expected: Sequence[float]) -> None:
        """expected: for each kind, before any was seen."""
        self._right = [2 * share for share in expected]
        self._totals = [2.0] * len(expected)

    def of(self, kind: int) -> float:
        return self._right[kind] / self._totals[kind]

    def note(self, kind: int, *, is_right: bool) -> None:
        self._right[kind] = _FADING * self._right[kind] + is_right
        self._totals[kind] = _FADING * self._totals[kind] + 1


class SpeculationStatistics:
    """Statistics over all replies of an engine. Used from several threads without locks: lost updates do no harm."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        # by the length of a match: 0, 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, 32
        self.matches = Acceptance((0.0, 0.0, 0.4, 0.5, 0.7, 0.8, 0.9))
        self.confidences = Acceptance((0.1, 0.3, 0.5, 0.7, 0.9))  # by the draft model's own probability, in fifths
        self.drafts = Acceptance((0.6,))  # all tokens of the draft model
        self.balance = 0.5  # steps that rejected draft tokens may cost


def _between(fed: int) -> tuple[int, float]:
    """Between which two kept counts a step is: the place of the upper one, and its share."""
    above = min(max(1, bisect_left(_COUNTS, fed)), len(_COUNTS) - 1)
    return above, (fed - _COUNTS[above - 1]) / (_COUNTS[above] - _COUNTS[above - 1])


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
