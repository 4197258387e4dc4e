"""A row of logits that lies elsewhere, on a device or in JavaScript, and the few numbers of it that sampling needs.

Standard library only: CUDA and the browser share it. What is asked for comes over as the best token with the sum of all
exponentials, or as a list of the best few hundred with it; what cannot be answered from these asks the whole row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.types import Candidates

if TYPE_CHECKING:
    from embedllm.types import Logits, TokenBits


@dataclass(frozen=True, slots=True)
class Best:
    """The highest logits as far as they are known, and the log of the sum of all exponentials.

    Highest first; equal ones in the order of their ids, except that of those equal to the last some may be missing.
    """

    tokens: Sequence[int]
    logits: Sequence[float]
    logsumexp: float  # not finite: the row has to be asked, which says what is wrong with it


class ListedRow:
    """The `Logits` of a row that lies elsewhere.

    listed: how many tokens `ask_list` gives; 0: there is no list.
    ask_best, ask_list, whole: give the best token, the list and the row itself. They raise ValueError when the logits
    are no longer there.
    """

    __slots__ = ("_ask_best", "_ask_list", "_ask_whole", "_best", "_listed", "_row", "_size")

    def __init__(
        self,
        size: int,
        *,
        listed: int,
        ask_best: Callable[[], Best],
        ask_list: Callable[[], Best],
        whole: Callable[[], Logits],
    ) -> None:
        self._size = size
        self._listed = listed
        self._ask_best = ask_best
        self._ask_list = ask_list
        self._ask_whole = whole
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
        best = self._known(count) if count >= 1 else None
        return Candidates(best.tokens[:count], best.logits[:count]) if best else self._whole().top(count)

    def logsumexp(self, temperature: float = 1.0) -> float:
        best = self._known(1) if temperature == 1 else None
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
            self._row = self._ask_whole()
        return self._row

    def _known(self, count: int) -> Best | None:
        """At least that many of the best; None when there is no such list, or it does not show which they are."""
        if self._best is None or len(self._best.tokens) < count:
            if self._row is not None:
                return None
            if count == 1:
                self._best = self._ask_best()
            elif count < self._listed <= self._size:
                self._best = self._ask_list()
            else:
                return None
        best = self._best
        if not math.isfinite(best.logsumexp):
            return None
        # equal logits go by their ids, and the list need not have the first of those that are at its end
        is_tied = len(best.tokens) > 1 and best.logits[count - 1] == best.logits[-1]
        return None if is_tied else best
