"""A row of logits that lies on a device, and the few numbers of it that most sampling needs, reduced there.

Bringing 150,000 logits to the host and summing their exponentials there takes a quarter of a millisecond, a fifth of a
step of a small model on a fast GPU. So small graphs of their own (backends/heads, made by tools/make_heads.py) run on
the device over the logits where they are: the best token with the sum, or the best few hundred. What cannot be
answered from these brings the row over and asks `Row`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.rows import Row
from embedllm.types import Candidates

if TYPE_CHECKING:
    from embedllm.backends.ort import ort
    from embedllm.types import F32, Logits

HEADS = Path(__file__).parent / "heads"
# tokens that the list of the best has, one more than the sampler's first look, to see a tie at its end: CUDA's TopK
# takes 50 us for 256 of 150,000 and 870 for 257
LISTED = 256
LARGEST_VOCABULARY = 1 << 24  # token ids come as float32, exact up to here
_ROW, BEST, _LIST = "row", "best", "list"


class Head:
    """One small graph over the logits of one set of buffers; its result comes to the host."""

    def __init__(
        self,
        session: ort.InferenceSession,
        logits: ort.OrtValue,
        *,
        size: int,
        options: ort.RunOptions,
        place: Callable[[np.ndarray], ort.OrtValue],
        read: Callable[[ort.OrtValue], np.ndarray],
    ) -> None:
        """size: how many float32 numbers it gives."""
        self._session = session
        self._options = options
        self._read = read
        self._out = place(np.zeros(size, np.float32))
        self._binding = session.io_binding()
        self._binding.bind_ortvalue_input("logits", logits)
        self._binding.bind_ortvalue_output("out", self._out)

    def __call__(self) -> F32:
        """[size]"""
        self._session.run_with_iobinding(self._binding, self._options)
        return self._read(self._out)


def sizes(vocabulary: int) -> dict[str, int]:
    """How many numbers each head gives, by its name. A list longer than the vocabulary is none."""
    found = {_ROW: vocabulary, BEST: 3}
    return found | ({_LIST: 2 * LISTED + 1} if vocabulary >= LISTED else {})


@dataclass(frozen=True, slots=True)
class _Best:
    """The highest logits as far as they are known, and the log of the sum of all exponentials."""

    tokens: list[int]
    logits: list[float]
    logsumexp: float


class DeviceRow:
    """The `Logits` of a row on a device.

    Raises, at the first question about values that are not finite, what `Row` does.
    """

    __slots__ = ("_ask", "_best", "_row", "_size")

    def __init__(self, size: int, ask: Callable[[str], F32]) -> None:
        """ask: runs a head by its name; raises ValueError when the logits are no longer there."""
        self._size = size
        self._ask = ask
        self._best: _Best | None = None
        self._row: Row | None = None

    @property
    def size(self) -> int:
        return self._size

    def values(self, tokens: Sequence[int]) -> list[float]:
        best = self._best
        if self._row is None and best is not None and all(token in best.tokens for token in tokens):
            return [best.logits[best.tokens.index(token)] for token in tokens]
        return self._whole().values(tokens)

    def top(self, count: int) -> Candidates:
        best = self._listed(count) if self._row is None and count >= 1 else None
        return Candidates(best.tokens[:count], best.logits[:count]) if best else self._whole().top(count)

    def logsumexp(self, temperature: float = 1.0) -> float:
        best = self._listed(1) if self._row is None and temperature == 1 else None
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

    def draw(self, temperature: float, uniform: float) -> int:
        return self._whole().draw(temperature, uniform)

    def mean(self, temperature: float) -> float:
        return self._whole().mean(temperature)

    def mass_nearer(self, token: int, centre: float, *, temperature: float) -> float:
        return self._whole().mass_nearer(token, centre, temperature=temperature)

    def _whole(self) -> Row:
        if self._row is None:
            self._row = Row(self._ask(_ROW))
        return self._row

    def _listed(self, count: int) -> _Best | None:
        """At least that many of the best; None when the device has no such list, or does not show which they are."""
        if self._best is None or len(self._best.tokens) < count:
            if count == 1:
                self._best = _one(self._ask(BEST))
            elif count < LISTED <= self._size:
                self._best = _several(self._ask(_LIST))
            else:
                return None
        best = self._best
        if best is None or not math.isfinite(best.logsumexp):
            return None
        # equal logits go by their ids, and the list need not have the first of those that are at its end
        is_tied = len(best.tokens) > 1 and best.logits[count - 1] == best.logits[-1]
        return None if is_tied else best


def _one(numbers: F32) -> _Best:
    token, logit, logsumexp = numbers.tolist()
    return _Best([int(token)], [logit], logsumexp)


def _several(numbers: F32) -> _Best:
    tokens, logits, logsumexp = numbers[:LISTED], numbers[LISTED:-1], float(numbers[-1])
    order = np.lexsort((tokens, -logits))
    return _Best(tokens[order].astype(np.int64).tolist(), logits[order].tolist(), logsumexp)
