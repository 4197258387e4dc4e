"""The numpy row answers as a plain sort or sum over the whole vocabulary would."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.errors import DeviceError
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32

BORDERS = (1, 2, 63, 64, 65, 511, 512, 513, 1024, 1300)  # around the stripes of `top` and the blocks of the sums


def row_of(*logits: float) -> NumpyLogits:
    return NumpyLogits(np.array(logits, dtype=np.float32))


def softmax(logits: F32, temperature: float) -> NDArray[np.float64]:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


@st.composite
def rows(draw: st.DrawFn) -> F32:
    """Rows of awkward sizes, with many equal logits or none, and forbidden tokens."""
    size = draw(st.sampled_from(BORDERS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = (rng.standard_normal(size) * draw(st.sampled_from((0.1, 3, 30)))).astype(np.float32)
    if draw(st.booleans()):
        logits = np.round(logits)
    logits[rng.random(size) < draw(st.sampled_from((0, 0.2, 0.999)))] = -np.inf
    logits[rng.integers(size)] = 1.0  # at least one is allowed
    return logits


temperatures = st.sampled_from((1e-3, 0.7, 1.0, 1.7, 50.0))


def test_top_gives_the_highest_first_and_the_lower_id_of_equals() -> None:
    best = row_of(1, 5, -2, 5, 3).top(3)
    assert (best.tokens, best.logits) == ([1, 3, 4], [5.0, 5.0, 3.0])


@given(rows(), st.integers(0, 1400), st.integers(0, 2**32), st.sampled_from((np.uint32, np.int32, np.uint8)))
def test_masked_forbids_the_tokens_without_a_bit(logits: F32, bits: int, seed: int, kind: type[np.integer]) -> None:
    allowed = np.random.default_rng(seed).integers(2, size=bits).astype(bool)
    octets = np.packbits(np.append(allowed, np.zeros(-bits % 32, dtype=bool)), bitorder="little")
    masked = NumpyLogits(logits).masked(octets.view(kind))
    in_row = np.append(allowed, np.zeros(logits.size, dtype=bool))[: logits.size]
    expected = np.where(in_row, logits, np.float32(-np.inf))
    assert masked.values(range(logits.size)) == expected.tolist()


def test_masked_leaves_the_row_as_it_was() -> None:
    row = row_of(1, 2, 3)
    assert row.masked(bytes([0b011, 0, 0, 0])).top(1).tokens == [1]
    assert row.top(1).tokens == [2]


def test_a_row_that_is_masked_wholly_says_that_no_token_is_allowed() -> None:
    with pytest.raises(ValueError, match="no token is allowed"):
        row_of(1, 2).masked(bytes(4)).top(1)


@given(rows(), st.integers(1, 1500))
def test_top_equals_a_stable_sort(logits: F32, count: int) -> None:
    order = np.argsort(-logits, kind="stable")[:count]
    best = NumpyLogits(logits).top(count)
    assert best.tokens == order.tolist()
    assert best.logits == logits[order].tolist()


@pytest.mark.parametrize("shape", ["ascending", "descending", "one stripe", "equal", "masked"])
def test_top_is_exact_where_the_bound_is_poor(shape: str) -> None:
    size = 6400
    logits = {
        "ascending": np.arange(size),
        "descending": -np.arange(size),
        "one stripe": np.arange(size) * (np.arange(size) % 100 == 7),  # all the high ones in one column
        "equal": np.zeros(size),
        "masked": np.where(np.arange(size) % 1000 == 5, 1.0, -np.inf),
    }[shape].astype(np.float32)
    for count in (1, 40, 99, 101, size):
        assert NumpyLogits(logits).top(count).tokens == np.argsort(-logits, kind="stable")[:count].tolist()


def test_top_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="count is 0"):
        row_of(1, 2).top(0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused_with_their_token(bad: float) -> None:
    for ask in (lambda row: row.top(1), lambda row: row.logsumexp(), lambda row: row.draw(1.0, 0.5)):
        with pytest.raises(DeviceError, match=r"not finite numbers: token 2 has (nan|inf)"):
            ask(row_of(1, -math.inf, bad, 4))


def test_a_row_that_forbids_every_token_is_refused() -> None:
    with pytest.raises(ValueError, match="no token is allowed"):
        row_of(-math.inf, -math.inf).top(1)


@pytest.mark.parametrize("array", [np.zeros((1, 4), np.float32), np.zeros(4), np.zeros(0, np.float32)])
def test_only_one_row_of_float32_is_taken(array: F32) -> None:
    with pytest.raises(ValueError, match=r"expected float32 \[V\]"):
        NumpyLogits(array)


def test_logsumexp_of_four_equal_logits_is_log_4_above_them() -> None:
    assert row_of(7, 7, 7, 7).logsumexp() == pytest.approx(7 + math.log(4))
    assert row_of(7, 7, 7, 7).logsumexp(2.0) == pytest.approx(3.5 + math.log(4))


@given(rows(), temperatures)
def test_logsumexp_and_mean_equal_the_formula(logits: F32, temperature: float) -> None:
    scaled = logits.astype(np.float64) / temperature
    expected = scaled.max() + math.log(np.exp(scaled - scaled.max()).sum())
    assert NumpyLogits(logits).logsumexp(temperature) == pytest.approx(expected, rel=1e-6, abs=2e-6)
    allowed = np.isfinite(logits)
    mean = (softmax(logits, temperature)[allowed] * logits[allowed]).sum()
    assert NumpyLogits(logits).mean(temperature) == pytest.approx(mean, rel=1e-6, abs=1e-5)


def test_differences_beyond_float32_count_as_zero_probability() -> None:
    row = row_of(3e38, -3e38)
    assert row.mean(1.0) == pytest.approx(3e38)
    assert row.draw(1e-5, 0.999) == 0


def test_draw_walks_the_probabilities_in_the_order_of_ids() -> None:
    row = row_of(math.log(0.5), -math.inf, math.log(0.25), math.log(0.25))
    assert [row.draw(1.0, uniform) for uniform in (0, 0.49, 0.51, 0.74, 0.76, 1 - 2**-53)] == [0, 0, 2, 2, 3, 3]


@given(rows(), temperatures, st.floats(0, 1, exclude_max=True))
def test_draw_equals_a_search_in_the_cumulative_sum(logits: F32, temperature: float, uniform: float) -> None:
    token = NumpyLogits(logits).draw(temperature, uniform)
    probability = softmax(logits, temperature)
    cumulative = np.cumsum(probability)
    rounding = 1e-5  # of float32 weights, at the borders between two tokens
    assert probability[token] > 0
    assert cumulative[token] - probability[token] <= uniform + rounding
    assert cumulative[token] >= uniform - rounding


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("size", BORDERS)
def test_draw_never_leaves_the_allowed_tokens_at_the_borders(size: int, uniform: float) -> None:
    for token in {0, size // 2, size - 1}:
        logits = np.full(size, -np.inf, dtype=np.float32)
        logits[token] = -80.0
        assert NumpyLogits(logits).draw(1.0, uniform) == token


def test_draw_finds_a_token_where_the_sums_of_blocks_and_tokens_differ_by_rounding() -> None:
    for seed in range(100):
        logits = np.random.default_rng(seed).standard_normal(700).astype(np.float32)
        assert 690 <= NumpyLogits(logits).draw(1.0, 1 - 2**-53) < 700


def test_mass_nearer_sums_the_tokens_that_go_first() -> None:
    row = row_of(*(math.log(share) for share in (0.1, 0.4, 0.2, 0.1, 0.2)))
    before = [row.mass_nearer(token, math.inf, temperature=1.0) for token in range(5)]
    assert before == pytest.approx([0.8, 0, 0.4, 0.9, 0.6])


def test_mass_nearer_puts_the_higher_of_two_equally_far_first() -> None:
    row = row_of(0, 2, 1, 2)  # seen from 1 the order is 2, 1, 3, 0
    share = softmax(np.array([0, 2, 1, 2], dtype=np.float32), 1.0)
    before = [row.mass_nearer(token, 1.0, temperature=1.0) for token in (2, 1, 3, 0)]
    assert before == pytest.approx([0, share[2], share[2] + share[1], 1 - share[0]])


@given(rows(), temperatures, st.sampled_from((math.inf, -1.3, 0.0, 2.0)), st.integers(0))
def test_mass_nearer_equals_a_sort_by_distance(logits: F32, temperature: float, centre: float, token: int) -> None:
    token %= logits.size
    exact = logits.astype(np.float64)
    distance = np.abs(exact - centre) if centre < math.inf else np.zeros(logits.size)
    order = np.lexsort((np.arange(logits.size), -exact, distance))
    before = softmax(logits, temperature)[order[: order.tolist().index(token)]].sum()
    assert NumpyLogits(logits).mass_nearer(token, centre, temperature=temperature) == pytest.approx(before, abs=1e-5)


def test_penalized_changes_these_tokens_of_a_copy() -> None:
    row = row_of(1, 2, 3, -4)
    other = row.penalized([0, 3, 2], biases=[7.0, 0.0, -math.inf], divisors=[2.0, 2.0, 0.5], subtracted=[1.0, 0.5, -2])
    assert row.values([0, 1, 2, 3]) == [1, 2, 3, -4]
    assert other.values([0, 1, 2, 3]) == [3, 2, -math.inf, -8.5]
    assert (row.size, other.size) == (4, 4)


def test_one_row_answers_for_several_temperatures_in_turn() -> None:
    row = row_of(0, 1, 2)
    first = row.logsumexp(1.0)
    assert row.logsumexp(0.5) == pytest.approx(math.log(1 + math.exp(2) + math.exp(4)))
    assert row.logsumexp(1.0) == first
