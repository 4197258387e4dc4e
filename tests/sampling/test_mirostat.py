"""Mirostat, by hand and by what it promises: the surprise of what it draws."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from embedllm.sampling.mirostat import Mirostat
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler

HALVES = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))


def drawn(rule: Mirostat, sampling: Sampling, logits: np.ndarray) -> set[int]:
    """What it may draw at this step."""
    row = NumpyLogits(logits.astype(np.float32))
    return {rule.choose(row, sampling, uniform=lambda u=u: u) for u in np.linspace(0, 1, 200, endpoint=False)}


def test_version_2_leaves_out_what_is_more_surprising_than_the_limit() -> None:
    sampling = Sampling(mirostat=2, mirostat_tau=1.25, mirostat_eta=1.0)
    rule = Mirostat(sampling)
    assert drawn(rule, sampling, HALVES) == {0, 1}  # at most 2.5 bits: twice tau
    # of the two, token 0 has 2/3, a surprise of 0.585 bits, 0.665 too few: the limit goes up by that, to 3.165
    rule.choose(NumpyLogits(HALVES), sampling, uniform=lambda: 0.0)
    rule.note(0)
    assert drawn(rule, sampling, HALVES) == {0, 1, 2, 3}
    # token 3 has its own 3 bits, 1.75 too many: down to 1.415
    rule.choose(NumpyLogits(HALVES), sampling, uniform=lambda: 0.99)
    rule.note(3)
    assert drawn(rule, sampling, HALVES) == {0}


def test_one_token_always_stays() -> None:
    sampling = Sampling(mirostat=2, mirostat_tau=0.01)
    assert drawn(Mirostat(sampling), sampling, HALVES) == {0}


def test_a_choice_that_is_not_noted_or_another_token_moves_nothing() -> None:
    sampling = Sampling(mirostat=2, mirostat_tau=1.25, mirostat_eta=1.0)
    rule = Mirostat(sampling)
    for _ in range(5):
        rule.choose(NumpyLogits(HALVES), sampling, uniform=lambda: 0.0)
    rule.note(3)
    assert drawn(rule, sampling, HALVES) == {0, 1}


@pytest.mark.parametrize(("tau", "expected"), [(1.0, 3), (2.0, 13), (3.0, 53)])
def test_version_1_keeps_so_many_of_a_zipf_distribution(tau: float, expected: int) -> None:
    # probability 1 / rank: the exponent is found to be 1, and then k is 2 ** mu / log(size): 4, 16, 64 over log(1000)
    logits = -np.log(np.arange(1, 1001))
    sampling = Sampling(mirostat=1, mirostat_tau=tau)
    kept = math.floor(2 ** (2 * tau) / math.log(1000))
    assert len(drawn(Mirostat(sampling), sampling, logits)) == max(1, kept)
    assert kept <= expected


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_the_mean_surprise_comes_to_its_target(version: int, tau: float) -> None:
    sampling = Sampling(mirostat=version, mirostat_tau=tau, mirostat_eta=0.1, seed=4)
    sampler = Sampler(sampling)
    rows = [np.random.default_rng(seed).standard_normal(2000).astype(np.float32) * 2 for seed in range(8)]
    surprise: list[float] = []
    for step in range(800):
        picked = sampler.pick(NumpyLogits(rows[step % 8]))
        rule = sampler._mirostat  # pyright: ignore[reportPrivateUsage]
        assert rule is not None
        assert rule._chosen is not None  # pyright: ignore[reportPrivateUsage]
        surprise.append(rule._chosen[1])  # pyright: ignore[reportPrivateUsage]
        sampler.note(picked.token)
    assert np.mean(surprise[200:]) == pytest.approx(tau, abs=0.15)


def test_it_takes_the_temperature_first() -> None:
    # squared, 16/22 4/22 1/22 1/22: surprises of 0.46, 2.46 and 4.46 bits
    sampling = Sampling(mirostat=2, mirostat_tau=1.1, temperature=0.5)
    assert drawn(Mirostat(sampling), sampling, HALVES) == {0}
    warm = Sampling(mirostat=2, mirostat_tau=1.1)
    assert drawn(Mirostat(warm), warm, HALVES) == {0, 1}


@pytest.mark.parametrize("version", [1, 2])
def test_rows_of_any_shape_give_allowed_tokens(version: int) -> None:
    flat = np.zeros(900, dtype=np.float32)
    masked = np.full(9000, -np.inf, dtype=np.float32)
    masked[[7, 4000]] = 1.0
    sampler = Sampler(Sampling(mirostat=version, seed=1))
    assert {sampler.pick(NumpyLogits(masked)).token for _ in range(30)} == {7, 4000}
    assert len(Counter(sampler.pick(NumpyLogits(flat)).token for _ in range(30))) > 20
    assert Sampler(Sampling(mirostat=version)).pick(NumpyLogits(np.zeros(1, dtype=np.float32))).token == 0
    assert Sampler(Sampling(mirostat=version, temperature=0)).pick(NumpyLogits(HALVES)).token == 0
