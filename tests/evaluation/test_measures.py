"""Perplexity, divergence and percentiles, against numbers worked out by hand and against plain float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.errors import DeviceError
from embedllm.evaluation import measures
from embedllm.evaluation.measures import Record, measure, score

if TYPE_CHECKING:
    from embedllm.types import F32

LOG_3 = math.log(3)


def rows(*values: list[float]) -> F32:
    return np.array(values, np.float32)


def measured(base: F32, other: F32, targets: list[int]) -> tuple[Record, Record]:
    first, second = Record(), Record()
    measure([base, other], targets, [first, second], has_base=True)
    return first, second


def plain_logprobs(logits: F32) -> np.ndarray:
    wide = logits.astype(np.float64)
    return (
        wide
        - np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        - wide.max(axis=1, keepdims=True)
    )


# --- by hand


def test_two_tokens_by_hand() -> None:
    """The base holds the second token for three times as probable, the model both for the same."""
    base, other = measured(rows([0, LOG_3], [0, LOG_3]), rows([5, 5], [5, 5]), [1])
    far = score(other, base).divergence
    assert far is not None
    assert far.mean_kl == pytest.approx(0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5), abs=1e-7)
    assert score(base).perplexity == pytest.approx(4 / 3)  # one token was foretold, with 3/4
    assert score(other, base).perplexity == pytest.approx(2)
    assert far.perplexity_ratio == pytest.approx(2 / (4 / 3))
    assert far.same_top == 0  # of two equal ones the first is the top


def test_perplexity_is_the_geometric_mean_over_all_calls() -> None:
    record = Record()
    measure([rows([0, LOG_3], [0, LOG_3], [0, LOG_3])], [1, 1, 0], [record], has_base=False)
    measure([rows([0, 0])], [1], [record], has_base=False)
    assert score(record).perplexity == pytest.approx((4 / 3 * 4 / 3 * 4 * 2) ** (1 / 4))
    assert score(record).divergence is None


def test_percentiles_are_those_of_all_tokens_together() -> None:
    base, record = Record(), Record()
    base.losses = record.losses = [np.zeros(1)]
    # the mean of the two halves' own percentiles would be (47.5 + 97.5) / 2
    record.divergences = [np.arange(50.0), np.arange(50.0, 101.0)]
    record.same = [np.array([True, True, True]), np.array([False])]
    far = score(record, base).divergence
    assert far is not None
    assert (far.mean_kl, far.kl_95, far.kl_99, far.same_top) == (50, 95, 99, 0.75)


def test_the_text_may_end_before_the_rows_do() -> None:
    record = Record()
    measure([rows([0, LOG_3], [0, LOG_3])], [0], [record], has_base=False)
    assert [losses.tolist() for losses in record.losses] == [[pytest.approx(math.log(4))]]


# --- properties

LOGITS = st.tuples(st.integers(1, 9), st.integers(2, 40), st.integers(0, 2**32 - 1), st.floats(0.01, 30))


@given(LOGITS)
def test_it_is_what_plain_float64_gives(case: tuple[int, int, int, float]) -> None:
    length, vocabulary, seed, spread = case
    random = np.random.default_rng(seed)
    base, other = (random.standard_normal((2, length, vocabulary)) * spread).astype(np.float32)
    targets = random.integers(0, vocabulary, length).tolist()
    _, found = measured(base, other, targets)
    p, q = plain_logprobs(base), plain_logprobs(other)
    np.testing.assert_allclose(found.divergences[0], (np.exp(p) * (p - q)).sum(axis=1), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(found.losses[0], -q[np.arange(length), targets], atol=1e-5)
    assert found.same[0].tolist() == (base.argmax(axis=1) == other.argmax(axis=1)).tolist()


@given(LOGITS, st.integers(1, 60))
def test_blocks_and_pieces_change_nothing(case: tuple[int, int, int, float], block: int) -> None:
    length, vocabulary, seed, spread = case
    random = np.random.default_rng(seed)
    base, other = (random.standard_normal((2, length, vocabulary)) * spread).astype(np.float32)
    targets = random.integers(0, vocabulary, length).tolist()
    _, whole = measured(base, other, targets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "_BLOCK", block)
        first, cut = Record(), Record()
        for at in range(0, length, 2):
            piece = slice(at, at + 2)
            measure([base[piece], other[piece]], targets[piece], [first, cut], has_base=True)
    assert np.concatenate(cut.divergences).tolist() == whole.divergences[0].tolist()
    assert np.concatenate(cut.losses).tolist() == whole.losses[0].tolist()


@given(LOGITS, st.floats(-50, 50))
def test_a_divergence_is_never_negative_and_that_from_itself_is_nothing(
    case: tuple[int, int, int, float], shift: float
) -> None:
    length, vocabulary, seed, spread = case
    logits = (np.random.default_rng(seed).standard_normal((length, vocabulary)) * spread).astype(np.float32)
    _, same = measured(logits, logits.copy(), [])
    assert not same.divergences[0].any()
    _, shifted = measured(logits, logits + np.float32(shift), [])  # the same distribution but for rounding
    assert (shifted.divergences[0] >= 0).all()
    assert shifted.divergences[0].max() < 1e-4


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_an_error(odd: float) -> None:
    with pytest.raises(DeviceError, match="not finite"):
        measure([rows([0, 1], [odd, 1])], [0], [Record()], has_base=False)
