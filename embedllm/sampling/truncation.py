"""Which tokens stay in the draw: top-p, min-p, typical, top-n-sigma and XTC, over a short list of the best ones.

Standard library only. The list is often a small part of the vocabulary. Each step then tells from it alone what it
keeps, exactly, or returns None where tokens outside the list could belong to it: look again with a longer list.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import neg

from embedllm.types import Candidates


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The best tokens of one step, highest logit first, and how much there is besides them."""

    tokens: Sequence[int]
    logits: Sequence[float]
    weights: Sequence[float]  # exp((logit - best logit) / temperature), above 0
    total: float  # weight of all tokens left, listed or not
    is_whole: bool  # whether all that are left are listed

    def first(self, count: int) -> Shortlist:
        """The whole list of its `count` best tokens."""
        weights = self.weights[:count]
        return Shortlist(self.tokens[:count], self.logits[:count], weights, sum(weights), True)

    def without_first(self, count: int) -> Shortlist:
        """The list less its `count` best tokens."""
        left, total = self.weights[count:], self.total - sum(self.weights[:count])
        return Shortlist(self.tokens[count:], self.logits[count:], left, sum(left) if self.is_whole else total,
                         self.is_whole)  # fmt: skip

    def mean(self) -> float:
        """The expected logit over the listed tokens."""
        return sum(w * x for w, x in zip(self.weights, self.logits, strict=True)) / sum(self.weights)

    def draw(self, uniform: float) -> int:
        """The token at which the cumulative weight passes this part of it; uniform: in [0, 1)."""
        cumulative = list(accumulate(self.weights))
        return self.tokens[bisect_right(cumulative, uniform * cumulative[-1])]  # a product below the sum, rounded too


def listed(best: Candidates, temperature: float, *, logsumexp: float | None = None) -> Shortlist:
    """The list of these tokens, less those whose weight is 0.

    logsumexp: of logits / temperature over the vocabulary; None when `best` is all there is.
    """
    highest = best.logits[0]
    weights = [math.exp((logit - highest) / temperature) for logit in best.logits]
    some = bisect_left(weights, 0.0, key=neg)
    whole = Shortlist(best.tokens, best.logits, weights, sum(weights), True).first(some)
    if logsumexp is None or some < len(weights):
        return whole  # what is not listed weighs no more than the last, nothing
    return replace(whole, total=math.exp(logsumexp - highest / temperature), is_whole=False)


def nucleus(shortlist: Shortlist, mass: float) -> Shortlist | None:
    """Top-p: the fewest best tokens that hold this share of the weight; at least one.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration".
    """
    cumulative = list(accumulate(shortlist.weights))
    count = bisect_left(cumulative, mass * shortlist.total) + 1
    if count > len(cumulative) and not shortlist.is_whole:
        return None
    return shortlist.first(count)


def above_share(shortlist: Shortlist, share: float) -> Shortlist | None:
    """Min-p: the tokens at least this share as probable as the best one.

    Source: Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".
    """
    return _above(shortlist, share * shortlist.weights[0])


def above_probability(shortlist: Shortlist, probability: float) -> Shortlist | None:
    """The tokens that have at least this probability; at least one."""
    return _above(shortlist, probability * shortlist.total)


def within(shortlist: Shortlist, distance: float) -> Shortlist | None:
    """Top-n-sigma: the tokens whose logits are at most `distance`, n standard deviations, below the best.

    Source: Tang et al. 2024, "Top-n-sigma: Not All Logits Are You Need".
    """
    least = shortlist.logits[0] - distance
    count = bisect_right(shortlist.logits, -least, key=neg)
    is_shown = shortlist.is_whole or count < len(shortlist.logits)
    return shortlist.first(count) if is_shown else None


def top_choices(shortlist: Shortlist, threshold: float) -> int | None:
    """XTC, "exclude top choices": how many of the best tokens to leave out.

    Those with at least this probability, but for the last of them; none when fewer than two have it.
    Source: P. E. Weidmann 2024, github.com/oobabooga/text-generation-webui pull request 6335.
    """
    count = bisect_right(shortlist.weights, -threshold * shortlist.total, key=neg)
    if count == len(shortlist.weights) and not shortlist.is_whole:
        return None
    return max(0, count - 1)


def typical(shortlist: Shortlist, mass: float, *, mean: float) -> Shortlist | None:
    """The fewest tokens of most ordinary surprise that hold this share of the weight; at least one.

    A token's surprise is -log of its probability, the most ordinary is the entropy, and the distance between the two
    is that between the token's logit and `mean`, the expected logit, over the temperature.
    Source: Meister et al. 2022, "Locally Typical Sampling".
    """
    logits, weights = shortlist.logits, shortlist.weights
    distances = [abs(logit - mean) for logit in logits]
    order = sorted(range(len(logits)), key=distances.__getitem__)
    count = bisect_left(list(accumulate(weights[place] for place in order)), mass * shortlist.total) + 1
    places = sorted(order[:count])
    if not shortlist.is_whole:
        nearest_unlisted = mean - logits[-1]  # at least so far, when it is above 0
        if count > len(order) or distances[order[count - 1]] > nearest_unlisted:
            return None
    kept_weights = [weights[place] for place in places]
    return Shortlist(
        [shortlist.tokens[place] for place in places],
        [logits[place] for place in places],
        kept_weights,
        sum(kept_weights),
        True,
    )


def _above(shortlist: Shortlist, least: float) -> Shortlist | None:
    """The tokens with at least this weight, or the best one."""
    count = bisect_right(shortlist.weights, -least, key=neg)
    is_shown = shortlist.is_whole or count < len(shortlist.weights)
    return shortlist.first(max(1, count)) if is_shown else None
