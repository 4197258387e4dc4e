"""One sampling step: temperature and truncations in order, over as short a list of tokens as is exact.

Standard library only.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.sampling.options import LEAST_TEMPERATURE
from embedllm.sampling.truncation import Shortlist, above_share, listed, nucleus, top_choices, typical, within
from embedllm.types import Candidates, Logits

if TYPE_CHECKING:
    from embedllm.sampling.options import Sampling


# How many of the best tokens are looked at, in turn, until they are seen to hold all that the truncations keep.
# 255 are enough for a peaked distribution, and what GPUs list; sorting 4096 costs what all the rest of a step does.
FIRST_LOOK, SECOND_LOOK = 255, 4096

# Draws from the whole vocabulary that may miss a large kept set. One that holds half the mass is missed by all of
# them once in 65,000 steps, and then found by sorting.
_TRIES = 16

# Truncations whose set one sum over the row tells a token's place in, if it is large: see _draw_kept.
_TESTABLE = {("typical_p",), ("top_p",), ("min_p",), ("top_p", "min_p")}


@dataclass(frozen=True, slots=True)
class CandidatePool:
    """The distribution to draw from: logits at a temperature, and the shortlist of the best tokens."""

    row: Logits
    temperature: float
    best: Shortlist

    def draw(self, uniform: float) -> int:
        return self.best.draw(uniform) if self.best.is_whole else self.row.draw(self.temperature, uniform)


def choose(logits: Logits, sampling: Sampling, *, uniform: Callable[[], float]) -> int:
    """The next token, by temperature, truncations and the draw; of equally good ones, greedy takes the lowest id.

    uniform: gives numbers in [0, 1), as many as are asked for.
    """
    if sampling.is_greedy:
        return logits.top(1).tokens[0]
    steps = sampling.draw_steps
    if not steps or steps == ("temperature",):
        temperature = temperature_of(logits, sampling)
        return logits.draw(temperature, uniform()) if temperature else logits.top(1).tokens[0]
    if "xtc" in steps and uniform() >= sampling.xtc_probability:
        steps = tuple(step for step in steps if step != "xtc")
    pool = truncated(logits, sampling, steps, look=FIRST_LOOK)
    if pool is None:
        token = _draw_kept(logits, sampling, steps, uniform=uniform)
        if token is not None:
            return token
        pool = truncated(logits, sampling, steps, look=SECOND_LOOK)
        pool = pool or truncated(logits, sampling, steps, look=logits.size)
    assert pool is not None  # nothing is unlisted when the list has every token
    return pool.draw(uniform())


def truncated(logits: Logits, sampling: Sampling, steps: tuple[str, ...], *, look: int) -> CandidatePool | None:
    """The tokens that these steps keep, exactly; None when the `look` best tokens do not determine them.

    look: not asked for when top_k comes first and says how many are enough.
    """
    row, temperature, best = _first_shortlist(logits, sampling, steps, look=look)
    size = row.size  # how many tokens the steps so far left; not len(best.tokens), which lacks those without weight
    for step in steps[1:] if steps[:1] == ("temperature",) else steps:
        if step == "temperature":
            temperature, best = _apply_temperature(row, best, sampling, size=size)
        elif step == "xtc":
            count = top_choices(best, sampling.xtc_threshold)
            if count is None:
                return None
            row = row if best.is_whole or not count else _without(row, best.tokens[:count])
            best, size = best.without_first(count), size - count
        else:
            left = _apply_truncation(step, best, sampling, row=row, temperature=temperature, logits=logits)
            if left is None:
                return None
            best, size = left, len(left.tokens)
    return CandidatePool(row, temperature, best)


def temperature_of(row: Logits, sampling: Sampling, best: Shortlist | None = None, *, size: int = 0) -> float:
    """The temperature of this step; 0: the best token.

    best: what other steps left. size: how many tokens that is in all, 0: the row's. When the temperature is dynamic, it
    goes from the least to the greatest with the entropy, as a share of the maximum entropy of that number of tokens,
    to the power of the exponent.
    Source: llama.cpp b10470, src/llama-sampling.cpp, temp_ext.
    """
    temperature, reach = sampling.temperature, sampling.dynamic_temperature
    if reach:
        least, most = max(0.0, temperature - reach), temperature + reach
        size = size or row.size
        share = (
            _normalized_entropy_of_all(row, size)
            if best is None or not best.is_whole
            else _normalized_entropy(best, size)
        )
        temperature = least + (most - least) * share**sampling.dynamic_exponent
    return temperature if temperature >= LEAST_TEMPERATURE else 0.0


def _normalized_entropy(best: Shortlist, size: int) -> float:
    """The entropy of a whole list, as a share of that of a uniform distribution over `size` tokens."""
    shares = [weight / best.total for weight in best.weights]
    return -sum(share * math.log(share) for share in shares) / math.log(size) if len(shares) > 1 else 0.0


def _normalized_entropy_of_all(row: Logits, size: int) -> float:
    """As _normalized_entropy, at temperature 1, over the whole vocabulary."""
    # rounding, of numbers far from 0, must not take it out of its range
    return min(max((row.logsumexp() - row.mean(1.0)) / math.log(size), 0.0), 1.0) if size > 1 else 0.0


def _first_shortlist(
    logits: Logits, sampling: Sampling, steps: tuple[str, ...], *, look: int
) -> tuple[Logits, float, Shortlist]:
    """The first shortlist: at the step's temperature, when that comes first."""
    temperature = 1.0
    if steps[:1] == ("temperature",):
        temperature, steps = temperature_of(logits, sampling), steps[1:]
    is_top_k = steps[:1] == ("top_k",)
    best = logits.top(sampling.top_k if is_top_k else look)
    if not temperature:
        return logits, 1.0, listed(best, 1.0).first(1)
    is_all = is_top_k or look >= logits.size
    return logits, temperature, listed(best, temperature, logsumexp=None if is_all else logits.logsumexp(temperature))


def _apply_temperature(row: Logits, best: Shortlist, sampling: Sampling, *, size: int) -> tuple[float, Shortlist]:
    """A temperature that follows other steps, and the same tokens at it."""
    temperature = temperature_of(row, sampling, best, size=size)
    if not temperature:
        return 1.0, best.first(1)
    logsumexp = None if best.is_whole else row.logsumexp(temperature)
    return temperature, listed(Candidates(best.tokens, best.logits), temperature, logsumexp=logsumexp)


def _without(row: Logits, tokens: Sequence[int]) -> Logits:
    """The row with -inf for these tokens."""
    count = len(tokens)
    return row.penalized(
        array("q", tokens),
        biases=array("f", [-math.inf]) * count,
        divisors=array("f", [1.0]) * count,
        subtracted=array("f", bytes(4 * count)),
    )


def _apply_truncation(
    step: str, best: Shortlist, sampling: Sampling, *, row: Logits, temperature: float, logits: Logits
) -> Shortlist | None:
    """The tokens that one truncation keeps; None when the shortlist does not determine them.

    row, temperature: what the list is of. logits: what the steps began with.
    """
    if step == "top_k":
        if best.is_whole and len(best.tokens) <= sampling.top_k:
            return best
        return best.first(sampling.top_k) if best.is_whole or len(best.tokens) >= sampling.top_k else None
    if step == "top_p":
        return nucleus(best, sampling.top_p)
    if step == "min_p":
        return above_share(best, sampling.min_p)
    if step == "top_n_sigma":
        return within(best, sampling.top_n_sigma * logits.deviation())
    return typical(best, sampling.typical_p, mean=best.mean() if best.is_whole else row.mean(temperature))


def _draw_kept(
    logits: Logits, sampling: Sampling, steps: tuple[str, ...], *, uniform: Callable[[], float]
) -> int | None:
    """A token from a large kept set, found by drawing from all until one is in it; None if there was none.

    Whether a token is in the set is one sum, however large the set; that of a flat distribution has 100,000 tokens.
    Not for typical_p with another truncation, say, where membership depends on sums over the typical set alone.
    """
    is_warm = steps[:1] == ("temperature",)
    if (steps[1:] if is_warm else steps) not in _TESTABLE:
        return None
    temperature = temperature_of(logits, sampling) if is_warm else 1.0
    is_typical = "typical_p" in steps
    mass = sampling.typical_p if is_typical else sampling.top_p
    centre = logits.mean(temperature) if is_typical else math.inf
    least = -math.inf
    if sampling.min_p > 0:
        least = logits.top(1).logits[0] + temperature * math.log(sampling.min_p)
    for _ in range(_TRIES):
        token = logits.draw(temperature, uniform())
        if logits.values([token])[0] >= least and (
            mass == 1 or logits.mass_nearer(token, centre, temperature=temperature) < mass
        ):
            return token
    return None
