"""Beam search: the most probable replies, with several beams followed in parallel; the algorithm without I/O.

Standard library only.
Source: transformers 5.24, generation/utils.py, _beam_search without sampling; the same candidates, scores and end.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from embedllm.sampling.sampler import check_logits
from embedllm.types import Logits

_MOST_BEAMS = 1024


@dataclass(frozen=True, slots=True)
class Beam:
    """A reply so far, the natural log probability of each of its tokens, and their sum."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    total: float = 0.0
    parent: int = 0  # which of the beams before it prolongs


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A reply that is at its end, and its score: the sum over its length to the power of the penalty."""

    beam: Beam
    score: float


@dataclass(slots=True, kw_only=True)
class BeamSearch:
    """The beams of one search. `accept` takes the logits after each of `running`, in their order.

    Raises ValueError for options out of their range.
    """

    beams: int  # how many are followed, and found at most
    length_penalty: float = 1.0  # above 0 longer replies score higher, below 0 shorter ones
    early_stopping: bool | Literal["never"] = False  # True: at `beams` replies found; "never": only when sure
    stop_tokens: Collection[int]
    limit: int  # tokens of a reply
    running: list[Beam] = field(default_factory=lambda: [Beam()])
    finished: list[FinishedBeam] = field(default_factory=list[FinishedBeam])  # best first
    is_done: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.beams, int) or not 1 <= self.beams <= _MOST_BEAMS:
            raise ValueError(
                f"beams is {reprlib.repr(self.beams)}; expected a whole number, 1 to {_MOST_BEAMS}: each has a KV cache"
            )
        if not isinstance(self.length_penalty, (int, float)) or not -100 <= self.length_penalty <= 100:
            raise ValueError(f"length_penalty is {self.length_penalty!r}; expected -100 to 100, 0 = off")
        if type(self.early_stopping) is not bool and self.early_stopping != "never":
            raise ValueError(f"early_stopping is {self.early_stopping!r}; expected True, False or 'never'")

    def accept(self, rows: Sequence[Logits]) -> None:
        """One token more: the best beams run on, those that ended are found.

        Raises DeviceError for logits of a broken model: not finite, or all equal.
        """
        # enough candidates that `beams` remain when all others end
        count = max(2, 1 + len(self.stop_tokens)) * self.beams
        nexts = [beam for place, row in enumerate(rows) for beam in _prolong(self.running[place], place, row, count)]
        nexts.sort(key=lambda beam: -beam.total)
        del nexts[count:]
        length = len(nexts[0].tokens)
        is_last = length >= self.limit
        self.running = [beam for beam in nexts if not (is_last or self._ends(beam))][: self.beams]
        ended = [beam for beam in nexts[: self.beams] if is_last or self._ends(beam)]
        self.finished += [FinishedBeam(beam, beam.total / length**self.length_penalty) for beam in ended]
        self.finished.sort(key=lambda beam: -beam.score)
        del self.finished[self.beams :]
        is_full = len(self.finished) == self.beams
        self.is_done = not self.running or (is_full and (self.early_stopping is True or not self._can_improve(length)))

    def _ends(self, beam: Beam) -> bool:
        return beam.tokens[-1] in self.stop_tokens

    def _can_improve(self, length: int) -> bool:
        """Whether the best of those that run may still score higher than the worst that was found."""
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.limit
        return self.running[0].total / length**self.length_penalty > self.finished[-1].score


def _prolong(beam: Beam, place: int, row: Logits, count: int) -> list[Beam]:
    """The most probable continuations of a beam by one token."""
    best, logsumexp = row.top(count), row.logsumexp()
    check_logits(row, best.logits[0] - logsumexp)
    return [
        Beam((*beam.tokens, token), (*beam.logprobs, logit - logsumexp), beam.total + logit - logsumexp, place)
        for token, logit in zip(best.tokens, best.logits, strict=True)
    ]
