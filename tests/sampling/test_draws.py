"""What a device is told to guess a sampler's tokens by."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler

ROW = np.random.default_rng(0).standard_normal(100).astype(np.float32)


def test_upcoming_numbers_are_those_that_the_sampler_draws_next() -> None:
    expected = random.Random(7)
    numbers = [expected.random() for _ in range(6)]
    sampler = Sampler(Sampling(seed=7))
    assert sampler.draws is not None
    assert sampler.draws.upcoming(4) == numbers[:4]
    sampler.pick(NumpyLogits(ROW))
    assert sampler.draws.upcoming(5) == numbers[1:]


@pytest.mark.parametrize("seed", [3, None])
def test_looking_at_them_does_not_change_what_is_drawn(seed: int | None) -> None:
    one = Sampler(Sampling(seed=seed))
    assert one.draws is not None
    expected = one.draws.upcoming(8)
    found = []
    for _ in range(8):
        found += one.draws.upcoming(1)
        one.pick(NumpyLogits(ROW))
    assert found == expected


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.7}, {"top_p": 0.9}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.02}],
)
def test_temperature_top_k_top_p_and_min_p_can_be_guessed(options: dict[str, Any]) -> None:
    assert Sampler(Sampling(**options)).draws is not None


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"top_k": 1},
        {"dynamic_temperature": 0.5},
        {"mirostat": 2},
        {"typical_p": 0.9},
        {"top_n_sigma": 1.0},
        {"xtc_probability": 0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": {3: 1.0}},
        {"dry_multiplier": 0.8},
        {"no_repeat_ngram": 3},
        {"order": ("top_p", "temperature"), "top_p": 0.9, "temperature": 0.7},
    ],
    ids=str,
)
def test_other_steps_and_orders_are_not(options: dict[str, Any]) -> None:
    sampling = Sampling(**options)
    assert Sampler(sampling, decode=str).draws is None


def test_tokens_that_are_banned_for_a_while_are_not() -> None:
    assert Sampler(Sampling(), stop_tokens=[2], min_tokens=4).draws is None
