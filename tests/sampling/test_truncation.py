"""Top-p, min-p and typical sampling keep what a sort of the whole vocabulary would keep."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedllm.sampling.truncation import Shortlist, above_share, listed, nucleus, typical
from embedllm.types import Candidates

EPSILON = 1e-9  # sums in another order may fall on the other side of a border


def whole(*shares: float) -> Shortlist:
    """The list of all tokens, which have these probabilities, highest first."""
    return listed(Candidates(range(len(shares)), [math.log(share) for share in shares]), 1.0)


def begun(logits: Sequence[float], temperature: float, count: int) -> Shortlist:
    """The list of the `count` best of these tokens."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[:count]
    scaled = [logit / temperature for logit in logits]
    logsumexp = max(scaled) + math.log(sum(math.exp(each - max(scaled)) for each in scaled))
    best = Candidates(order, [logits[token] for token in order])
    return listed(best, temperature, logsumexp=logsumexp if count < len(logits) else None)


def tokens(kept: Shortlist | None) -> list[int]:
    assert kept is not None
    assert kept.is_whole
    assert kept.total == pytest.approx(sum(kept.weights))
    return list(kept.tokens)


def test_the_nucleus_includes_the_token_that_crosses_its_mass() -> None:
    shortlist = whole(0.5, 0.25, 0.15, 0.1)
    assert tokens(nucleus(shortlist, 0.4)) == [0]
    assert tokens(nucleus(shortlist, 0.6)) == [0, 1]
    assert tokens(nucleus(shortlist, 0.8)) == [0, 1, 2]
    assert tokens(nucleus(shortlist, 0.95)) == [0, 1, 2, 3]


def test_the_nucleus_ends_with_the_token_that_just_reaches_its_mass() -> None:
    assert tokens(nucleus(whole(0.5, 0.5), 0.5)) == [0]


def test_every_truncation_keeps_a_token() -> None:
    shortlist = whole(0.3, 0.3, 0.2, 0.2)
    assert tokens(nucleus(shortlist, 0.0)) == [0]
    assert tokens(above_share(shortlist, 1.0)) == [0, 1]  # equal to the best
    assert len(tokens(typical(shortlist, 0.0, mean=shortlist.mean()))) == 1


def test_min_p_is_a_share_of_the_best_probability() -> None:
    shortlist = whole(0.5, 0.25, 0.15, 0.1)
    assert tokens(above_share(shortlist, 0.6)) == [0]
    assert tokens(above_share(shortlist, 0.4)) == [0, 1]
    assert tokens(above_share(shortlist, 0.25)) == [0, 1, 2]
    assert tokens(above_share(shortlist, 0.1)) == [0, 1, 2, 3]


def test_typical_may_leave_out_the_best_token() -> None:
    # surprise, -log of each: 0.598 1.204 2.303 2.996; entropy 1.070; distances 0.472 0.134 1.233 1.926
    shortlist = whole(0.55, 0.3, 0.1, 0.05)
    assert tokens(typical(shortlist, 0.25, mean=shortlist.mean())) == [1]
    assert tokens(typical(shortlist, 0.7, mean=shortlist.mean())) == [0, 1]
    assert tokens(typical(shortlist, 0.9, mean=shortlist.mean())) == [0, 1, 2]


def test_min_p_after_typical_compares_with_the_best_token_left() -> None:
    shortlist = whole(0.55, 0.3, 0.1, 0.05)
    without_best = Shortlist([1, 2, 3], shortlist.logits[1:], shortlist.weights[1:], sum(shortlist.weights[1:]), True)
    assert tokens(above_share(without_best, 0.3)) == [1, 2]


def test_tokens_without_weight_are_not_listed_and_end_the_list() -> None:
    best = Candidates([4, 7, 1], [0.0, -1000.0, -math.inf])
    shortlist = listed(best, 1.0, logsumexp=0.0)
    assert (list(shortlist.tokens), shortlist.is_whole) == ([4], True)


def test_a_list_too_short_to_tell_is_told() -> None:
    shortlist = begun([math.log(share) for share in (0.4, 0.3, 0.2, 0.1)], 1.0, 2)
    assert nucleus(shortlist, 0.75) is None
    assert tokens(nucleus(shortlist, 0.65)) == [0, 1]
    assert above_share(shortlist, 0.5) is None
    assert tokens(above_share(shortlist, 0.8)) == [0]
    assert typical(shortlist, 0.5, mean=shortlist.logits[1] - 0.1) is None  # the third may be nearer


def test_a_draw_passes_the_cumulative_weight() -> None:
    shortlist = whole(0.5, 0.25, 0.25)
    assert [shortlist.draw(uniform) for uniform in (0.0, 0.49, 0.51, 0.74, 0.76, 1 - 2**-53)] == [0, 0, 1, 1, 2, 2]


def naive_nucleus(share: NDArray[np.float64], logits: NDArray[np.float64], mass: float) -> set[int]:
    order = np.argsort(-logits, kind="stable")
    before = np.cumsum(share[order]) - share[order]
    return {int(order[0])} | set(order[before < mass].tolist())


def naive_min_p(share: NDArray[np.float64], logits: NDArray[np.float64], least: float) -> set[int]:
    return set(np.flatnonzero(share >= (1 - least) * share.max()).tolist())


def naive_typical(share: NDArray[np.float64], logits: NDArray[np.float64], mass: float) -> set[int]:
    surprise = -np.log(share)
    distance = np.abs(surprise - (share * surprise).sum()).round(12)
    order = np.lexsort((np.arange(len(logits)), -logits, distance))
    before = np.cumsum(share[order]) - share[order]
    return {int(order[0])} | set(order[before < mass].tolist())


def typical_of_all(logits: Sequence[float], temperature: float) -> Callable[[Shortlist, float], Shortlist | None]:
    mean = begun(logits, temperature, len(logits)).mean()
    return lambda shortlist, mass: typical(shortlist, mass, mean=mean)


@given(
    st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=30),
    st.floats(0.3, 3),
    st.floats(0.01, 0.99),
    st.integers(1, 30),
)
def test_truncations_of_the_best_tokens_equal_those_of_all_or_give_up(
    logits: list[float], temperature: float, mass: float, count: int
) -> None:
    exact = np.array(logits)
    weights = np.exp((exact - exact.max()) / temperature)
    share = weights / weights.sum()
    # min-p grows as its option falls: 1 - mass makes all three grow with mass
    for step, naive in (
        (nucleus, naive_nucleus),
        (lambda shortlist, grown: above_share(shortlist, 1 - grown), naive_min_p),
        (typical_of_all(logits, temperature), naive_typical),
    ):
        all_of_them = set(tokens(step(begun(logits, temperature, len(logits)), mass)))
        assert naive(share, exact, mass - EPSILON) <= all_of_them <= naive(share, exact, mass + EPSILON)
        some = step(begun(logits, temperature, count), mass)
        if some is not None and count < len(logits):
            assert naive(share, exact, mass - EPSILON) <= set(some.tokens) <= naive(share, exact, mass + EPSILON)
