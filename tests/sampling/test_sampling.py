"""The whole rule: options, order of the steps, and the distribution that is drawn."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.penalties import Penalties
from embedllm.sampling.sampler import Sampler, logprob, top_logprobs
from embedllm.sampling.token_choice import choose, truncated

if TYPE_CHECKING:
    from embedllm.types import F32, Logits

HALVES = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))


def picks(sampling: Sampling, logits: F32, count: int) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.pick(NumpyLogits(logits)).token for _ in range(count)]


def kept(sampling: Sampling, row: Logits) -> dict[int, float]:
    """Each token that may be drawn, with its probability."""
    pool = truncated(row, sampling, sampling.draw_steps, look=row.size)
    assert pool is not None
    shortlist = pool.best
    assert shortlist.is_whole
    return {token: weight / shortlist.total for token, weight in zip(shortlist.tokens, shortlist.weights, strict=True)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, r"temperature is -0.1; expected 0 \(greedy\) to 100"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": "0.7"}, "temperature is '0.7'"),
        ({"top_k": -1}, r"top_k is -1; expected 0 \(off\) or more"),
        ({"top_k": 2.5}, "top_k is 2.5; expected a whole number"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -1}, "min_p is -1"),
        ({"typical_p": 2}, "typical_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; expected 0.01 to 100"),
        ({"presence_penalty": 3}, "presence_penalty is 3; expected -2 to 2"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias has the token -1"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias has the token '5'; expected token ids"),
        ({"logit_bias": {5: math.inf}}, "logit_bias of token 5 is inf; expected -100 to 100"),
        ({"seed": 1.5}, "seed is 1.5; expected a whole number or None"),
        ({"logit_bias": [5]}, r"logit_bias is \[5\]; expected numbers by token id"),
        ({"bad_words": [5]}, "bad_words has 5; expected texts or sequences of token ids"),
        ({"bad_words": "a"}, "bad_words is 'a'; expected a list"),
        ({"processors": 5}, "processors is 5; expected a list of functions"),
        ({"dry_breakers": 5}, "dry_breakers is 5; expected a list of texts"),
        ({"order": 5}, "order is 5; expected a list of steps: penalties"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**wrong)  # type: ignore[arg-type]  # what a caller without a type checker may pass


def test_numbers_of_numpy_are_numbers() -> None:
    sampling = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.int64(7))  # type: ignore[arg-type]
    assert sampling == Sampling(temperature=0.5, top_k=3, seed=7)
    assert [type(value) for value in (sampling.temperature, sampling.top_k, sampling.seed)] == [float, int, int]


def test_options_are_frozen_and_hashable_and_take_a_dict_of_biases() -> None:
    sampling = Sampling(logit_bias={7: 1.0, 3: -math.inf})
    assert sampling == Sampling(logit_bias=((3, -math.inf), (7, 1.0)))
    assert dict(sampling.logit_bias) == {7: 1.0, 3: -math.inf}
    assert len({sampling, replace(sampling), Sampling()}) == 2
    with pytest.raises(FrozenInstanceError):
        sampling.top_k = 3  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=1e-6), Sampling(top_k=1)])
def test_greedy_takes_the_lowest_of_the_best_tokens(sampling: Sampling) -> None:
    assert sampling.is_greedy
    assert picks(sampling, np.array([1, 3, 3, 2], dtype=np.float32), 5) == [1] * 5


def test_greedy_looks_at_the_logits_after_penalties() -> None:
    sampler = Sampler(Sampling(temperature=0, frequency_penalty=0.75))
    row = NumpyLogits(np.array([2.0, 1.0, 0.0], dtype=np.float32))
    chosen: list[int] = []
    for _ in range(5):
        chosen.append(sampler.pick(row).token)
        sampler.note(chosen[-1])
    assert chosen == [0, 0, 1, 0, 1]  # 2, 1.25, then .5 < 1; .5 > .25; then -.25 < .25


def test_a_pick_that_is_not_noted_counts_for_nothing() -> None:
    sampler = Sampler(Sampling(temperature=0, presence_penalty=2.0))
    row = NumpyLogits(np.array([2.0, 1.0], dtype=np.float32))
    assert [sampler.pick(row).token for _ in range(3)] == [0, 0, 0]


def test_the_prompt_counts_for_the_repetition_penalty() -> None:
    row = NumpyLogits(np.array([2.0, 1.5], dtype=np.float32))
    assert Sampler(Sampling(temperature=0, repetition_penalty=2.0), [0]).pick(row).token == 1


def test_temperature_is_applied_before_the_nucleus_is_measured() -> None:
    # squared (temperature 0.5), 0.5 0.25 0.125 0.125 become 16/22 4/22 1/22 1/22
    assert kept(Sampling(temperature=0.5, top_p=0.7), NumpyLogits(HALVES)) == pytest.approx({0: 1})
    assert kept(Sampling(temperature=1.0, top_p=0.7), NumpyLogits(HALVES)) == pytest.approx({0: 2 / 3, 1: 1 / 3})


def test_the_nucleus_is_measured_on_what_top_k_left() -> None:
    # 0.5 of 0.75 is 2/3: enough for 0.6, while 0.5 of 1 is not
    assert kept(Sampling(top_k=2, top_p=0.6), NumpyLogits(HALVES)) == pytest.approx({0: 1})
    assert kept(Sampling(top_p=0.6), NumpyLogits(HALVES)) == pytest.approx({0: 2 / 3, 1: 1 / 3})


def test_the_nucleus_is_measured_on_what_typical_left() -> None:
    # distances from the entropy of 1.75 bits: 0.75, 0.25, 1.25, 1.25, so that 0.7 keeps the first two
    assert kept(Sampling(typical_p=0.2), NumpyLogits(HALVES)) == pytest.approx({1: 1})
    assert kept(Sampling(typical_p=0.7), NumpyLogits(HALVES)) == pytest.approx({0: 2 / 3, 1: 1 / 3})
    assert kept(Sampling(typical_p=0.7, top_p=0.6), NumpyLogits(HALVES)) == pytest.approx({0: 1})
    assert kept(Sampling(typical_p=0.7, min_p=0.6), NumpyLogits(HALVES)) == pytest.approx({0: 1})


def test_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    for sampling in (Sampling(seed=5), Sampling(seed=5, top_k=3), Sampling(seed=5, top_p=0.9, temperature=2.0)):
        first = picks(sampling, HALVES, 40)
        assert picks(sampling, HALVES, 40) == first
        assert picks(replace(sampling, seed=6), HALVES, 40) != first
        assert picks(replace(sampling, seed=None), HALVES, 40) != picks(replace(sampling, seed=None), HALVES, 40)


def test_log_probabilities_are_of_the_model_whatever_the_options() -> None:
    sampling = Sampling(temperature=0.3, top_k=2, repetition_penalty=1.5, logit_bias={1: 100.0})
    picked = Sampler(sampling, [0]).pick(NumpyLogits(HALVES))
    assert (picked.token, picked.logprob) == (1, pytest.approx(math.log(0.25)))


def test_top_logprobs_are_the_best_tokens_with_their_log_probabilities() -> None:
    row = NumpyLogits(HALVES + 3)
    expected = [(0, math.log(0.5)), (1, math.log(0.25)), (2, math.log(0.125))]
    assert [(each.token, each.logprob) for each in top_logprobs(row, 3)] == [
        (token, pytest.approx(value, abs=1e-6)) for token, value in expected
    ]
    assert logprob(row, 3) == pytest.approx(math.log(0.125), abs=1e-6)


def options(sampling: Sampling) -> str:
    """Those that are not off, as the name of a test case."""
    return " ".join(
        f"{each.name}={getattr(sampling, each.name)}"
        for each in fields(sampling)
        if each.init and getattr(sampling, each.name) not in (each.default, ())
    )


EVERY_STEP = Sampling(temperature=1.5, top_k=30, typical_p=0.95, top_p=0.9, min_p=0.05)
FLAT = [Sampling(top_p=0.9), Sampling(typical_p=0.7), Sampling(min_p=0.02), Sampling(top_p=0.8, min_p=0.02)]
RARE = [Sampling(typical_p=0.9, top_p=0.8), Sampling(typical_p=0.02), Sampling(top_p=0.08, temperature=5.0)]


def chi_square(found: Counter[int], expected: dict[int, float], bins: int) -> float:
    """Of the counts against the probabilities, the tokens gathered in bins of like probability."""
    ordered = sorted(expected, key=lambda token: -expected[token])
    edges = np.searchsorted(np.cumsum([expected[token] for token in ordered]), np.linspace(0, 1, bins + 1)[1:-1])
    count = sum(found.values())
    statistic = 0.0
    for part in np.split(np.array(ordered), edges):
        want = count * sum(expected[token] for token in part.tolist())
        if want:
            statistic += (sum(found[token] for token in part.tolist()) - want) ** 2 / want
    return statistic


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5), EVERY_STEP, *FLAT, *RARE], ids=options)
@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.8, 3.0])
def test_tokens_come_as_often_as_their_probability_says(sampling: Sampling, spread: float) -> None:
    logits = (np.random.default_rng(3).standard_normal(3000) * spread).astype(np.float32)
    expected = kept(sampling, NumpyLogits(logits))
    found = Counter(picks(replace(sampling, seed=11), logits, 1500))
    assert set(found) <= set(expected)
    assert chi_square(found, expected, 12) < 31.3  # 1 in 1000 at 11 degrees of freedom, for a seed that is fixed


@given(
    st.integers(0, 2**32),
    st.sampled_from((0.5, 2.0, 6.0)),
    st.sampled_from((0, 5, 50)),
    st.sampled_from((1.0, 0.6, 0.95)),
    st.sampled_from((1.0, 0.5, 0.99)),
    st.sampled_from((0.0, 0.05, 0.5)),
    st.integers(1, 400),
)
def test_a_short_look_shows_the_same_tokens_or_none(
    seed: int, spread: float, top_k: int, typical_p: float, top_p: float, min_p: float, look: int
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(400) * spread).astype(np.float32)
    sampling = Sampling(top_k=top_k, typical_p=typical_p, top_p=top_p, min_p=min_p)
    short = truncated(NumpyLogits(logits), sampling, sampling.draw_steps, look=look) if sampling.truncates else None
    if short is not None:
        assert short.best.is_whole
        assert set(short.best.tokens) == set(kept(sampling, NumpyLogits(logits)))


def test_a_draw_that_always_misses_still_gives_a_token_of_the_nucleus() -> None:
    logits = np.zeros(12000, dtype=np.float32)  # the nucleus is the lower half: more than the second look, too
    token = choose(NumpyLogits(logits), Sampling(top_p=0.5), uniform=lambda: 0.99)
    assert token == int(0.99 * 6000)


def test_a_masked_row_gives_only_allowed_tokens() -> None:
    logits = np.full(5000, -np.inf, dtype=np.float32)
    logits[[7, 4000]] = 1.0
    for sampling in (Sampling(), EVERY_STEP, *FLAT, *RARE):
        assert set(picks(replace(sampling, seed=1), logits, 20)) <= {7, 4000}


def test_the_rule_runs_without_numpy() -> None:
    code = "import embedllm.sampling.sampler, sys; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


PEERS = [  # options, and the same as transformers' processors in our order
    (Sampling(temperature=0.7), [("TemperatureLogitsWarper", 0.7)]),
    (Sampling(top_k=40), [("TopKLogitsWarper", 40)]),
    (Sampling(top_p=0.9), [("TopPLogitsWarper", 0.9)]),
    (Sampling(min_p=0.05), [("MinPLogitsWarper", 0.05)]),
    (Sampling(typical_p=0.8), [("TypicalLogitsWarper", 0.8)]),
    (Sampling(repetition_penalty=1.3), [("RepetitionPenaltyLogitsProcessor", 1.3)]),
    (
        Sampling(repetition_penalty=1.3, temperature=0.7, top_k=100, typical_p=0.9, top_p=0.9, min_p=0.02),
        [
            ("RepetitionPenaltyLogitsProcessor", 1.3),
            ("TemperatureLogitsWarper", 0.7),
            ("TopKLogitsWarper", 100),
            ("TypicalLogitsWarper", 0.9),
            ("TopPLogitsWarper", 0.9),
            ("MinPLogitsWarper", 0.02),
        ],
    ),
]


@pytest.mark.peer
@pytest.mark.parametrize("spread", [0.7, 2.0, 5.0])
@pytest.mark.parametrize(("sampling", "processors"), PEERS)
def test_distributions_equal_those_of_transformers(
    sampling: Sampling, processors: list[tuple[str, float]], spread: float
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    seen = list(range(0, 2000, 3))
    for seed in range(5):
        logits = (np.random.default_rng(seed).standard_normal(2000) * spread).astype(np.float32)
        scores = torch.tensor(logits)[None]
        for name, option in processors:
            scores = getattr(transformers, name)(option)(torch.tensor([seen]), scores)
        ours = np.zeros(2000)
        for token, share in kept(sampling, Penalties(sampling, seen).applied(NumpyLogits(logits))).items():
            ours[token] = share
        np.testing.assert_allclose(ours, scores.softmax(-1)[0].numpy(), rtol=1e-4, atol=1e-9)
