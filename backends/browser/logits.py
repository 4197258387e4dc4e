"""Rows of logits that lie in JavaScript, asked by synchronous calls: nothing of the vocabulary's size comes over.

A call takes a microsecond or two, the sums over 150,000 logits several hundred: so the sums that most steps need are
kept (`ListedRow`), and are taken in JavaScript.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from embedllm.backends.browser.javascript import (
    Buffer,
    JsValue,
    call,
    floats,
    integers,
    options,
    real_numbers,
    whole_numbers,
    words,
)
from embedllm.backends.sessions.topk_logits import Best, ListedRow
from embedllm.types import Candidates, TokenBits

_LISTED = 256  # one more than the sampler's first look


class JsCandidates(Protocol):
    """The best tokens, as JavaScript has them."""

    tokens: Buffer
    logits: Buffer


class JsRow(Protocol):
    """A row, as JavaScript has it: bindings_web/src/sampling/array_logits.js."""

    size: int

    def values(self, tokens: JsValue) -> Buffer: ...
    def penalized(self, changes: JsValue) -> JsRow: ...
    def masked(self, bits: TokenBits) -> JsRow: ...
    def top(self, count: int) -> JsCandidates: ...
    def logsumexp(self, temperature: float) -> float: ...
    def draw(self, temperature: float, uniform: float) -> int: ...
    def mean(self, temperature: float) -> float: ...
    def deviation(self) -> float: ...
    def massNearer(self, token: int, centre: float, temperature: float) -> float: ...  # noqa: N802  # JavaScript's


class WebRow:
    """The `Logits` of one row in JavaScript.

    alive: raises ValueError when the logits are no longer there.
    """

    __slots__ = ("_alive", "_row")

    def __init__(self, row: JsRow, alive: Callable[[], None]) -> None:
        self._row = row
        self._alive = alive

    @property
    def size(self) -> int:
        return self._row.size

    def values(self, tokens: Sequence[int]) -> list[float]:
        self._alive()
        return floats(call(self._row.values, whole_numbers(tokens)))

    def penalized(
        self,
        tokens: Sequence[int],
        *,
        biases: Sequence[float],
        divisors: Sequence[float],
        subtracted: Sequence[float],
    ) -> WebRow:
        self._alive()
        changes = {"tokens": whole_numbers(tokens), "biases": real_numbers(biases),
                   "divisors": real_numbers(divisors), "subtracted": real_numbers(subtracted)}  # fmt: skip
        return WebRow(call(self._row.penalized, options(changes)), self._alive)

    def masked(self, bits: TokenBits) -> WebRow:
        """See Logits. bits: a typed array of JavaScript's, or any buffer of 32-bit words, which is copied over."""
        self._alive()
        return WebRow(call(self._row.masked, words(bits)), self._alive)

    def top(self, count: int) -> Candidates:
        self._alive()
        best = call(self._row.top, count)
        return Candidates(integers(best.tokens), floats(best.logits))

    def logsumexp(self, temperature: float = 1.0) -> float:
        self._alive()
        return call(self._row.logsumexp, temperature)

    def draw(self, temperature: float, uniform: float) -> int:
        self._alive()
        return int(call(self._row.draw, temperature, uniform))

    def mean(self, temperature: float) -> float:
        self._alive()
        return call(self._row.mean, temperature)

    def deviation(self) -> float:
        self._alive()
        return call(self._row.deviation)

    def mass_nearer(self, token: int, centre: float, *, temperature: float) -> float:
        self._alive()
        return call(self._row.massNearer, token, centre, temperature)


def listed_row(row: JsRow, alive: Callable[[], None]) -> ListedRow:
    """The row of a feed, which keeps what most steps ask."""
    return ListedRow(row.size, _OneRow(WebRow(row, alive)), listed=_LISTED)


@dataclass(frozen=True, slots=True)
class _OneRow:
    """The source of a ListedRow."""

    row: WebRow

    def best(self, index: int, count: int) -> Best:
        candidates = self.row.top(count)
        return Best(candidates.tokens, candidates.logits, self.row.logsumexp())

    def whole(self, index: int) -> WebRow:
        return self.row
