"""A row of logits that lies elsewhere, on a device or in JavaScript, and the few numbers of it that sampling needs.

Standard library only: CUDA and the browser share it. What is asked for comes over as the best token with the sum of all
exponentials, or as a list of the best few hundred with it; what cannot be answered from these asks the whole row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from embedllm.types import Candidates

if TYPE_CHECKING:
    from embedllm.types import Logits, TokenBits


class Best(NamedTuple):
    """The highest logits as far as they are known, and the log of the sum of all exponentials.

    Highest first; equal ones in the order of their ids, except that of those equal to the last some may be missing.
    """

    tokens: Sequence[int]
    logits: Sequence[float]
    logsumexp: float  # not finite: the row has to be asked, which says what is wrong with it


class RowSource(Protocol):
    """Where rows lie. Its methods raise ValueError when the logits are no longer there."""

    def best(self, index: int, count: int) -> Best:
        """The best tokens of a row: one, or as many as a list has."""
        ...

    def whole(self, index: int) -> Logits:
        """The row itself."""
        ...


class ListedRow:
    """The `Logits` of a row that lies elsewhere."""

    __slots__ = ("_best", "_index", "_listed", "_row", "_size", "_source")

    def __init__(self, size: int, source: RowSource, index: int = 0, *, listed: int) -> None:
        """index: of the row in its source. listed: how many tokens a list has; 0: there is none."""
        self._size = size
        self._source = source
        self._index = index
        self._listed = listed
        self._best: Best | None = None
        self._row: Logits | None = None

    @property
    def size(self) -> int:
        return self._size

    def values(self, tokens: Sequence[int]) -> list[float]:
        best = self._best
        if best is not None and all(token in best.tokens for token in tokens):
            return [best.logits[best.tokens.index(token)] for token in tokens]
        return self._whole().values(tokens)

    def top(self, count: int) -> Candidates:
        best = self._find_best(count) if count >= 1 else None
        if best is None:
            return self._whole().top(count)
        tokens, logits, _ = best
        return Candidates(tokens, logits) if len(tokens) == count else Candidates(tokens[:count], logits[:count])

    def logsumexp(self, temperature: float = 1.0) -> float:
        best = self._find_best(1) if temperature == 1 else None
        return best.logsumexp if best else self._whole().logsumexp(temperature)

    def penalized(
        self,
        tokens: Sequence[int],
        *,
        biases: Sequence[float],
        divisors: Sequence[float],
        subtracted: Sequence[float],
    ) -> Logits:
        return self._whole().penalized(tokens, biases=biases, divisors=divisors, subtracted=subtracted)

    def masked(self, bits: TokenBits) -> Logits:
        return self._whole().masked(bits)

    def draw(self, temperature: float, uniform: float) -> int:
        return self._whole().draw(temperature, uniform)

    def mean(self, temperature: float) -> float:
        return self._whole().mean(temperature)

    def deviation(self) -> float:
        return self._whole().deviation()

    def mass_nearer(self, token: int, centre: float, *, temperature: float) -> float:
        return self._whole().mass_nearer(token, centre, temperature=temperature)

    def _whole(self) -> Logits:
        if self._row is None:
            self._row = self._source.whole(self._index)
        return self._row

    def _find_best(self, count: int) -> Best | None:
        """At least that many of the best; None when there is no such list, or it does not show which they are."""
        if self._best is None or len(self._best.tokens) < count:
            if self._row is not None:
                return None
            if count == 1:
                self._best = self._source.best(self._index, 1)
            elif count < self._listed <= self._size:
                self._best = self._source.best(self._index, self._listed)
            else:
                return None
        best = self._best
        if not math.isfinite(best.logsumexp):
            return None
        # equal logits go by their ids, and the list need not have the first of those that are at its end
        is_tied = len(best.tokens) > 1 and best.logits[count - 1] == best.logits[-1]
        return None if is_tied else best
