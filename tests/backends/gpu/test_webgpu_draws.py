"""The graph that guesses sampled tokens on WebGPU, run on the CPU beside the sampler. No GPU is needed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from embedllm.backends.gpu.webgpu_draws import DIGITS, NUMBERS, ROWS, draws_graph, guess_of, numbers_of
from embedllm.backends.ort.runtime import ort
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler

OPTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "cold": {"temperature": 0.3},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "top_p 0": {"top_p": 0},
    "min_p": {"min_p": 0.05},
    "top_k": {"top_k": 40},
    "top_k larger than the vocabulary": {"top_k": 5000, "top_p": 0.5},
    "three": {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
}
ROWS_TRIED = 12


@cache
def session_of(vocabulary: int, dtype: type[np.floating]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(draws_graph(vocabulary, np.dtype(dtype)), options, providers=["CPUExecutionProvider"])


def run(
    row: np.ndarray, numbers: np.ndarray, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = np.zeros((ROWS, 1, row.size + DIGITS), row.dtype) if rows is None else rows
    found = session_of(row.size, row.dtype.type).run(
        ["next_ids", "next_numbers", "next_rows"], {"logits": row[None, None], "numbers": numbers, "rows": rows}
    )
    ids, next_numbers, next_rows = (np.asarray(each) for each in found)
    return ids, next_numbers, next_rows


def peaked(vocabulary: int, seed: int, dtype: type[np.floating]) -> np.ndarray:
    """A row as models give them: a few likely tokens over many unlikely ones."""
    numbers = np.random.default_rng(seed)
    row = numbers.standard_normal(vocabulary) * 2
    row[numbers.integers(0, vocabulary, 12)] += numbers.exponential(6, 12) + 8
    return row.astype(dtype)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("vocabulary", "dtype"), [(307, np.float32), (5000, np.float16)])
def test_it_guesses_what_the_sampler_draws(options: dict[str, Any], vocabulary: int, dtype: type[np.floating]) -> None:
    right = 0
    for seed in range(ROWS_TRIED):
        row, sampler = peaked(vocabulary, seed, dtype), Sampler(Sampling(seed=seed, **options))
        assert sampler.draws is not None
        ids, _, _ = run(row, numbers_of(sampler.draws.sampling, sampler.draws.upcoming(1)))
        right += int(ids[0, 0]) == sampler.pick(NumpyLogits(row.astype(np.float32))).token
    assert right >= ROWS_TRIED - 1  # rounding decides one at most


def test_flat_rows_of_which_the_list_shows_the_best_are_guessed_too() -> None:
    """5,000 tokens of about the same weight: more than the list takes at its least weight."""
    right = 0
    for seed in range(ROWS_TRIED):
        row = np.random.default_rng(seed).standard_normal(5000).astype(np.float32)
        sampler = Sampler(Sampling(seed=seed, top_k=40))
        assert sampler.draws is not None
        ids, _, _ = run(row, numbers_of(sampler.draws.sampling, sampler.draws.upcoming(1)))
        right += int(ids[0, 0]) == sampler.pick(NumpyLogits(row)).token
    assert right >= ROWS_TRIED - 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_come_unchanged_with_their_guesses_and_numbers_in_turn(dtype: type[np.floating]) -> None:
    vocabulary, sampling, uniforms = 5000, Sampling(), [0.9, 0.1, 0.5, 0.7]
    numbers, rows = numbers_of(sampling, uniforms), None
    given, guesses = [peaked(vocabulary, seed, dtype) for seed in range(ROWS + 1)], []
    for row in given:
        ids, numbers, rows = run(row, numbers, rows)
        guesses.append(int(ids[0, 0]))
    assert rows is not None
    np.testing.assert_array_equal(rows[:, 0, :-DIGITS], given[1:])
    assert [guess_of(row) for row in rows[:, 0]] == guesses[1:]
    assert max(guesses) > 1024  # two digits
    np.testing.assert_array_equal(numbers[0, NUMBERS - ROWS :], np.roll(np.array(uniforms, np.float32), -1))
    np.testing.assert_array_equal(numbers[0, : NUMBERS - ROWS], numbers_of(sampling, uniforms)[0, : NUMBERS - ROWS])


def test_a_guess_is_a_token_of_the_vocabulary_whatever_the_number() -> None:
    row = np.zeros(307, np.float32)  # rounding counts all of them
    for sampling in (Sampling(), Sampling(top_p=0.99), Sampling(min_p=0.5)):
        for uniform in (0.0, 0.5, 1.0):
            ids, _, _ = run(row, numbers_of(sampling, [uniform]))
            assert 0 <= ids[0, 0] < 307
