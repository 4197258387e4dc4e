"""One row of logits that lies in memory as a numpy array, answering what the sampler asks.

A vocabulary has some 150,000 tokens and a token is due every few milliseconds, so nothing here sorts the whole row
or walks it in Python: each method is a few passes of plain, vectorized float32 arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import DeviceError
from embedllm.types import Candidates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32, I64, TokenBits

# Rows of the table whose column maxima bound the highest logits: 64 leaves 2,400 columns of 152,000 tokens, few to
# sort through and enough for any usual count.
_STRIPES = 64

# Weights summed in float32 before float64 takes over. Tokens of one block are also what `draw` looks through.
_BLOCK = 512

# A draft head has logits of fewer tokens than this. Their sum in one pass takes 10 us in place of 50.
_FEW = 4096

# Smaller exponents count as -inf: 152,000 tokens of exp(-80) are 1e-30 of the best one's probability. Without a limit,
# results between exp(-103) and exp(-87) are denormal and take a processor 14 times as long: 0.7 ms, at temperature 0.3.
_NEGLIGIBLE = np.float32(-80.0)


@dataclass(frozen=True, slots=True)
class _Softmax:
    """exp((logit - best) / temperature) of every token, not yet divided by its sum."""

    temperature: float
    weights: F32
    cumulative: NDArray[np.float64]  # after each block of _BLOCK tokens; the last is the sum


class NumpyLogits:
    """The `Logits` of one float32 array [V].

    The array is viewed, not copied, and must stay as it is while the row is in use: the last softmax is kept, since
    drawing asks for it several times. A token whose logit is -inf is forbidden.

    Raises ValueError when the array is not float32 [V]. At the first question about its values: DeviceError when they
    hold a NaN or +inf, ValueError when they forbid every token.
    """

    __slots__ = ("_best", "_row", "_softmax")

    def __init__(self, row: F32) -> None:
        if row.ndim != 1 or row.dtype != np.float32 or not row.size:
            raise ValueError(f"logits are {row.dtype} {list(row.shape)}; expected float32 [V], one row")
        self._row: F32 = np.ascontiguousarray(row)
        self._best: float | None = None
        self._softmax: _Softmax | None = None

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary, V."""
        return self._row.size

    def values(self, tokens: Sequence[int]) -> list[float]:
        """The logits of these tokens."""
        return self._row[np.asarray(tokens, dtype=np.int64)].tolist()

    def penalized(
        self,
        tokens: Sequence[int],
        *,
        biases: Sequence[float],
        divisors: Sequence[float],
        subtracted: Sequence[float],
    ) -> NumpyLogits:
        """A copy in which these tokens have changed logits; see Logits. Arrays are read without a loop in Python."""
        places = np.asarray(tokens, dtype=np.int64)
        divisor = np.asarray(divisors, dtype=np.float32)
        biased = self._row[places] + np.asarray(biases, dtype=np.float32)
        # one of the two is 0; a choice by sign (np.where) takes three times as long, its branches are not foreseen
        changed = np.maximum(biased, 0)
        changed /= divisor
        changed += np.minimum(biased, 0) * divisor
        changed -= np.asarray(subtracted, dtype=np.float32)
        row = self._row.copy()
        row[places] = changed
        return NumpyLogits(row)

    def masked(self, bits: TokenBits) -> NumpyLogits:
        """A copy in which the tokens without a bit have -inf; see Logits. Raises TypeError when `bits` is no buffer."""
        octets = np.frombuffer(memoryview(bits).cast("B"), dtype=np.uint8)  # pyright: ignore[reportArgumentType]  # see Raises
        count = min(self.size, octets.size * 8)
        allowed = np.unpackbits(octets, bitorder="little", count=count).view(np.bool_)
        row = np.full(self.size, -np.inf, dtype=np.float32)
        np.copyto(row[:count], self._row[:count], where=allowed)
        return NumpyLogits(row)

    def top(self, count: int) -> Candidates:
        """The `count` highest logits, exactly; all V when count is larger. Raises ValueError when it is below 1."""
        if count < 1:
            raise ValueError(f"count is {count}; expected 1 or more")
        best = self._highest()
        if count == 1:
            return Candidates([int(self._row.argmax())], [best])
        count = min(count, self.size)
        tokens = _largest(self._row, count, bound=self._bound(count))
        logits = self._row[tokens]
        if tokens.size > count:
            largest = _largest(logits, count, bound=_order_statistic(logits, count))
            tokens, logits = tokens[largest], logits[largest]
        order = np.argsort(-logits, kind="stable")
        return Candidates(tokens[order].tolist(), logits[order].tolist())

    def logsumexp(self, temperature: float = 1.0) -> float:
        """log(sum(exp(logit / temperature))) over the whole vocabulary."""
        if temperature == 1 and self._softmax is None and self._row.size <= _FEW:
            best = self._highest()
            return best + math.log(float(np.exp(self._row - np.float32(best)).sum()))
        softmax = self._weigh(temperature)
        return self._highest() / temperature + float(np.log(softmax.cumulative[-1]))

    def mean(self, temperature: float) -> float:
        """The expected logit under softmax(logits / temperature)."""
        softmax = self._weigh(temperature)
        weighted = np.maximum(self._row, np.finfo(np.float32).min)  # 0 * -inf would be NaN
        weighted *= softmax.weights
        return float(_block_sums(weighted).sum() / softmax.cumulative[-1])

    def deviation(self) -> float:
        """The standard deviation of the logits above -inf."""
        self._highest()  # says what is wrong with a row of which there is none
        row = self._row if self._row.min() > -np.inf else self._row[self._row > -np.inf]
        return float(row.std(dtype=np.float64))

    def mass_nearer(self, token: int, centre: float, *, temperature: float) -> float:
        """The probability of the tokens that go before `token` when those with logits nearest to `centre` go first.

        At the same distance the higher logit goes first, at the same logit the lower id. With centre=inf that is
        the order of `top`.
        """
        softmax = self._weigh(temperature)
        row, logit = self._row, self._row[token]
        mirrored = 2 * centre - float(logit)
        nearer = (row > mirrored) & (row < logit) if logit >= centre else row > logit
        if logit < centre < np.inf:
            nearer &= row <= mirrored
        # numpy's own sum over a mask takes 40 times as long
        weights = nearer.astype(np.float32)
        weights *= softmax.weights
        mass = _block_sums(weights).sum()
        mass += np.count_nonzero(row[:token] == logit) * float(softmax.weights[token])
        return float(mass / softmax.cumulative[-1])

    def draw(self, temperature: float, uniform: float) -> int:
        """The token at which the cumulative softmax(logits / temperature), in the order of ids, passes `uniform`.

        uniform: in [0, 1). Never a token without probability.
        """
        softmax = self._weigh(temperature)
        target = uniform * softmax.cumulative[-1]
        block = _first_past(softmax.cumulative, target)
        if block:
            target -= softmax.cumulative[block - 1]
        start = block * _BLOCK
        return start + _first_past(np.cumsum(softmax.weights[start : start + _BLOCK], dtype=np.float64), target)

    def _highest(self) -> float:
        """The highest logit, once it is known to be a number."""
        if self._best is None:
            best = float(self._row.max())  # NaN if there is one
            if np.isnan(best) or best == np.inf:
                odd = int(np.argmax(~(self._row < np.inf)))
                raise DeviceError(
                    f"logits of the model are not finite numbers: token {odd} has {self._row[odd]}. A model run in "
                    "float16 may have overflowed, or its file is damaged; try another device or a wider type."
                )
            if best == -np.inf:
                raise ValueError("all logits are -inf: no token is allowed. Loosen the grammar or the logit bias.")
            self._best = best
        return self._best

    def _bound(self, count: int) -> float:
        """A number that at least `count` logits reach, close below the last of them."""
        width = self.size // _STRIPES
        if count > width:
            return _order_statistic(self._row, count)
        return _order_statistic(self._row[: width * _STRIPES].reshape(_STRIPES, width).max(axis=0), count)

    def _weigh(self, temperature: float) -> _Softmax:
        if self._softmax is None or self._softmax.temperature != temperature:
            with np.errstate(over="ignore"):  # a difference that overflows is a weight of 0
                weights = self._row - np.float32(self._highest())
                if temperature != 1:
                    weights *= np.float32(1 / temperature)
            cut = weights.min() < _NEGLIGIBLE
            if cut:
                np.maximum(weights, _NEGLIGIBLE, out=weights)
            np.exp(weights, out=weights)
            if cut:
                weights -= np.exp(_NEGLIGIBLE)  # lost in rounding, but makes what was cut off exactly 0
            cumulative = np.cumsum(_block_sums(weights))
            self._softmax = _Softmax(temperature, weights, cumulative)
        return self._softmax


def _order_statistic(values: F32, count: int) -> float:
    """The count-th largest value."""
    place = values.size - count
    return float(np.partition(values, place)[place])


def _largest(values: F32, count: int, *, bound: float) -> I64:
    """Ascending places of the largest values, at least `count` of them; of equal ones the first.

    bound: a number that at least `count` values reach. Exactly `count` places when it is the count-th largest value.
    """
    above = np.flatnonzero(values > bound)
    if above.size >= count:
        return above
    # apart from the above, since a masked row has 150,000 tokens at its bound of -inf
    at_bound = np.flatnonzero(values == bound)[: count - above.size]
    return np.concatenate([above, at_bound])


def _block_sums(values: F32) -> NDArray[np.float64]:
    """Sums of consecutive blocks of _BLOCK values, the last one shorter."""
    whole = values.size // _BLOCK * _BLOCK
    # einsum adds a block in float32 vector registers: a third of the time of sum(axis=1), same accuracy
    sums = np.einsum("ij->i", values[:whole].reshape(-1, _BLOCK))
    return np.append(sums.astype(np.float64), values[whole:].sum())


def _first_past(cumulative: NDArray[np.float64], target: float) -> int:
    """The first place whose cumulative sum is above target; the last that adds anything if rounding left none."""
    place = np.searchsorted(cumulative, target, side="right")
    return int(min(place, np.searchsorted(cumulative, cumulative[-1], side="left")))
