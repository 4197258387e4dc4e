"""Top-n-sigma, XTC, the dynamic temperature and the order of the steps: by hand, and drawn as often as computed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import ORDER, Sampling
from embedllm.sampling.sampler import Sampler
from embedllm.sampling.token_choice import CandidatePool, temperature_of, truncated

HALVES = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))
TEMPERATURE_LAST = (*(step for step in ORDER if step != "temperature"), "temperature")


def shares(sampling: Sampling, logits: np.ndarray, *, look: int | None = None) -> dict[int, float] | None:
    """Each token that may be drawn, with its probability, XTC at work; None when that many best do not show it."""
    row = NumpyLogits(logits.astype(np.float32))
    pool = truncated(row, sampling, sampling.draw_steps, look=look or row.size)
    return None if pool is None else chances(pool)


def chances(pool: CandidatePool) -> dict[int, float]:
    best = pool.best
    if best.is_whole:
        return {token: weight / best.total for token, weight in zip(best.tokens, best.weights, strict=True)}
    values = np.array(pool.row.values(range(pool.row.size))) / pool.temperature
    weights = np.exp(values - values.max())
    return {token: float(weights[token] / weights.sum()) for token in np.flatnonzero(weights).tolist()}


def test_top_n_sigma_keeps_logits_near_the_best_in_standard_deviations() -> None:
    logits = np.array([8.0, 5, 4, 1, -math.inf])  # mean 4.5, deviations 3.5 .5 -.5 -3.5: sigma 2.5
    assert NumpyLogits(logits.astype(np.float32)).deviation() == pytest.approx(2.5)
    for n, expected in ((0.1, [0]), (1.2, [0, 1]), (1.6, [0, 1, 2]), (2.7, [0, 1, 2]), (2.8, [0, 1, 2, 3])):
        assert list(shares(Sampling(top_n_sigma=n), logits) or {}) == expected
        assert list(shares(Sampling(top_n_sigma=n, temperature=3.0), logits) or {}) == expected  # any temperature


def test_xtc_leaves_out_all_top_choices_but_the_least_probable() -> None:
    everything = Sampling(xtc_probability=1, xtc_threshold=0.2)
    assert shares(everything, HALVES) == pytest.approx({1: 0.5, 2: 0.25, 3: 0.25})  # 0.5 goes, 0.25 is the last above
    assert shares(replace(everything, xtc_threshold=0.12), HALVES) == pytest.approx({3: 1})
    assert shares(replace(everything, xtc_threshold=0.3), HALVES) == pytest.approx(dict(enumerate(np.exp(HALVES))))


def test_xtc_measures_what_the_truncations_left() -> None:
    # of 0.5 and 0.25 alone, the second has a third
    assert shares(Sampling(top_k=2, xtc_probability=1, xtc_threshold=0.3), HALVES) == pytest.approx({1: 1})


def test_xtc_acts_as_often_as_its_probability_says() -> None:
    sampler = Sampler(Sampling(xtc_probability=0.25, xtc_threshold=0.2, seed=3))
    found = Counter(sampler.pick(NumpyLogits(HALVES)).token for _ in range(4000))
    assert found[0] / 4000 == pytest.approx(0.75 * 0.5, abs=0.025)  # three deviations
    assert found[1] / 4000 == pytest.approx(0.75 * 0.25 + 0.25 * 0.5, abs=0.025)


def test_xtc_alone_on_a_large_flat_row_looks_at_few_tokens() -> None:
    logits = np.zeros(20000, dtype=np.float32)
    logits[[3, 5]] = math.log(8000)  # 0.235 each
    sampler = Sampler(Sampling(xtc_probability=1, seed=1))
    found = Counter(sampler.pick(NumpyLogits(logits)).token for _ in range(300))
    assert found[3] == 0
    assert found[5] / 300 == pytest.approx(8000 / 27998, abs=0.08)


def test_the_dynamic_temperature_follows_the_entropy() -> None:
    sampling = Sampling(temperature=1.0, dynamic_temperature=0.5)
    assert temperature_of(NumpyLogits(np.zeros(8, dtype=np.float32)), sampling) == pytest.approx(1.5)
    certain = NumpyLogits(np.array([0, -100, -100], dtype=np.float32))
    assert temperature_of(certain, sampling) == pytest.approx(0.5, abs=1e-6)
    # 1.75 bits of at most 2
    assert temperature_of(NumpyLogits(HALVES), sampling) == pytest.approx(0.5 + 1.75 / 2)
    assert temperature_of(NumpyLogits(HALVES), replace(sampling, dynamic_exponent=2.0)) == pytest.approx(
        0.5 + (1.75 / 2) ** 2
    )
    assert temperature_of(NumpyLogits(HALVES), replace(sampling, dynamic_temperature=3.0)) == pytest.approx(
        4 * 1.75 / 2
    )


def test_a_dynamic_temperature_of_what_is_left_counts_that_alone() -> None:
    # 2/3 and 1/3: 0.9183 bits of at most 1
    sampling = Sampling(dynamic_temperature=0.5, top_k=2, order=TEMPERATURE_LAST)
    heat = 0.5 + 0.9183
    expected = 1 / (1 + 0.5 ** (1 / heat))
    assert shares(sampling, HALVES) == pytest.approx({0: expected, 1: 1 - expected}, abs=1e-4)


def test_a_dynamic_temperature_of_0_takes_the_best_token() -> None:
    sampling = Sampling(temperature=0.5, dynamic_temperature=0.5)
    logits = np.array([0, 1, -1000], dtype=np.float32) * 1000
    for options in (sampling, replace(sampling, top_p=0.9), replace(sampling, top_p=0.9, order=TEMPERATURE_LAST)):
        assert Sampler(options).pick(NumpyLogits(logits)).token == 1


def test_the_order_decides_what_a_nucleus_is_measured_on() -> None:
    # squared (temperature 0.5), 0.5 0.25 0.125 0.125 become 16/22 4/22 1/22 1/22
    sampling = Sampling(temperature=0.5, top_p=0.7)
    assert shares(sampling, HALVES) == pytest.approx({0: 1})
    assert shares(replace(sampling, order=TEMPERATURE_LAST), HALVES) == pytest.approx({0: 0.8, 1: 0.2})
    # min_p first leaves 0.5 and 0.25, of which the first has 2/3
    both = Sampling(top_p=0.6, min_p=0.4)
    assert shares(both, HALVES) == pytest.approx({0: 2 / 3, 1: 1 / 3})
    assert shares(replace(both, order=("min_p", "top_p")), HALVES) == pytest.approx({0: 1})


def test_top_k_later_counts_what_is_left() -> None:
    sampling = Sampling(typical_p=0.2, top_k=1, temperature=1, order=("typical_p", "top_k"))
    assert shares(sampling, HALVES) == pytest.approx({1: 1})  # the most ordinary, not the best


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"order": ("top_k", "top_z")}, "order has 'top_z' where that is no step, or twice"),
        ({"order": ("top_k", "top_k")}, "order has 'top_k' where that is no step, or twice"),
        ({"order": ("top_k",), "top_p": 0.5}, "order lacks 'top_p', which is on"),
        ({"order": ("top_k", "dry")}, "order has 'dry' too late"),
        ({"mirostat": 2, "top_p": 0.5}, "mirostat takes the place of the truncations"),
        ({"mirostat": 3}, "mirostat is 3; expected 0"),
        ({"xtc_threshold": 0.6}, "xtc_threshold is 0.6"),
        ({"no_repeat_ngram": 1.5}, "no_repeat_ngram is 1.5; expected a whole number"),
        ({"bad_words": "no"}, "bad_words is 'no'; expected a list"),
        ({"bad_words": [[]]}, r"bad_words has \(\)"),
        ({"bad_words": [[-1]]}, r"bad_words has \(-1,\)"),
        ({"dry_breakers": "\n"}, "dry_breakers is '\\\\n'; expected a list"),
        ({"processors": len}, "processors is <built-in function len>; expected a list"),
        ({"processors": [3]}, r"processors is \[3\]"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**wrong)  # type: ignore[arg-type]  # what a caller without a type checker may pass


def test_options_are_hashable_with_lists_and_functions() -> None:
    sampling = Sampling(bad_words=["a", [1, 2]], processors=[lambda logits, tokens: logits], order=list(ORDER))
    assert hash(sampling) == hash(replace(sampling))
    assert sampling.bad_words == ("a", (1, 2))


# a share of the truncations in any order, with the temperature among them
_LAST_WARM = ("top_k", "top_n_sigma", "typical_p", "top_p", "min_p", "xtc", "temperature")
orders = st.permutations([step for step in ORDER if step not in ("penalties", "dry", "processors")])


# the entropy over a row of which XTC took tokens
@example(0, [*_LAST_WARM], 0.7, 0.5, 0, 0.0, 1.0, 1.0, 0.0, 1.0, 4)
@given(
    st.integers(0, 2**32),
    orders,
    st.sampled_from((0.7, 1.0, 2.0)),
    st.sampled_from((0.0, 0.5)),
    st.sampled_from((0, 5, 50)),
    st.sampled_from((0.0, 1.0, 2.5)),
    st.sampled_from((1.0, 0.6, 0.95)),
    st.sampled_from((1.0, 0.5, 0.95)),
    st.sampled_from((0.0, 0.05, 0.5)),
    st.sampled_from((0.0, 1.0)),
    st.integers(1, 400),
)
def test_a_short_look_shows_the_same_shares_or_none_in_any_order(
    seed: int, order: list[str], heat: float, reach: float, top_k: int, sigma: float, typical: float, top_p: float,
    min_p: float, xtc: float, look: int,
) -> None:  # fmt: skip
    logits = (np.random.default_rng(seed).standard_normal(400) * 3).astype(np.float32)
    sampling = Sampling(
        temperature=heat, dynamic_temperature=reach, top_k=top_k, top_n_sigma=sigma, typical_p=typical, top_p=top_p,
        min_p=min_p, xtc_probability=xtc, xtc_threshold=0.05, order=order,
    )  # fmt: skip
    if not sampling.draw_steps:
        return
    short = shares(sampling, logits, look=look)
    if short is not None:
        assert short == pytest.approx(shares(sampling, logits), rel=1e-4, abs=1e-7)
