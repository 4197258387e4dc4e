"""What speculation has learned: the cost of a step of several tokens, and how often guesses are right.

Standard library only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

_KEPT = 9  # clocked steps of one token, whose median counts
_NEEDED = 3
_ODD = 1.5  # times what was expected, or one part: more is a hiccup of the machine, and counts as so much
_PRIOR = ((2, 1.2), (16, 4.0))  # tokens and cost before anything was clocked: near what the CPU takes
_FADING = 0.95  # of what was seen, with each new observation


class Costs:
    """What a step that feeds several tokens takes, in steps of one token; of an engine, learned from the clock.

    The cost of several is a straight line through what was seen. May be used from several threads.
    """

    def __init__(self) -> None:
        self.step_s = 0.0  # of one token
        self.draft = 0.1  # a step of the draft model
        self._rewound = 0.0
        self._singles: deque[float] = deque(maxlen=_KEPT)
        self._drafts: deque[float] = deque(maxlen=_KEPT)
        self._seen = (0.0,) * 5
        self._line = _line_through(self._seen)

    @property
    def is_known(self) -> bool:
        """Whether enough was clocked to compare with."""
        return len(self._singles) >= _NEEDED

    @property
    def rewound(self) -> float:
        """What the step after a rewind takes more."""
        return max(0.0, self._rewound)  # the mean of a noise around nothing is below it as often as above

    def of(self, fed: int) -> float:
        """The cost of a step that feeds so many tokens."""
        base, slope = self._line
        return max(1.0, base + slope * fed) if fed > 1 else 1.0

    def clipped(self, seconds: float, expected: float) -> float:
        """The cost that so many seconds are, without the machine's hiccups."""
        return min(max(seconds / self.step_s, expected / _ODD), expected * _ODD)

    def note(self, fed: int, seconds: float, *, is_rewound: bool) -> None:
        """Takes a step; is_rewound: something was rewound before it."""
        if fed == 1 and not is_rewound:
            self._singles.append(seconds)
            self.step_s = _median(self._singles)
            return
        if not self.is_known:
            return
        expected = self.of(fed)
        if is_rewound:
            cost = self.clipped(seconds, expected + self.rewound)
            self._rewound += 0.1 * (cost - expected - self._rewound)
        else:
            cost = self.clipped(seconds, expected)
            self._seen = _added([_FADING * old for old in self._seen], fed, cost)
            self._line = _line_through(self._seen)

    def note_draft(self, seconds: float) -> None:
        """Takes a step of the draft model."""
        self._drafts.append(seconds)
        if self.step_s:
            self.draft = _median(self._drafts) / self.step_s


class Acceptance:
    """How often guesses of a kind are right; the latest ones count most."""

    def __init__(self, expected: Sequence[float]) -> None:
        """expected: for each kind, before any was seen."""
        self._right = [2 * share for share in expected]
        self._seen = [2.0] * len(expected)

    def of(self, kind: int) -> float:
        return self._right[kind] / self._seen[kind]

    def note(self, kind: int, *, is_right: bool) -> None:
        self._right[kind] = _FADING * self._right[kind] + is_right
        self._seen[kind] = _FADING * self._seen[kind] + 1


def _added(sums: Iterable[float], x: float, y: float, weight: float = 1.0) -> tuple[float, ...]:
    """Sums of weights, x, y, xx and xy with one more point."""
    return tuple(old + weight * new for old, new in zip(sums, (1, x, y, x * x, x * y), strict=True))


def _line_through(sums: Sequence[float]) -> tuple[float, float]:
    """The base and the slope of the line nearest to the points and to what is expected before any."""
    for fed, cost in _PRIOR:
        sums = _added(sums, fed, cost, weight=0.2)
    weight, x, y, xx, xy = sums
    slope = max(0.0, (weight * xy - x * y) / (weight * xx - x * x))
    return (y - slope * x) / weight, slope


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
