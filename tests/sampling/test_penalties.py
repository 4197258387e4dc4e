"""Bias and penalties, by hand and against the formula."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.penalties import Penalties


def logits_after(sampling: Sampling, logits: list[float], prompt: list[int], reply: list[int]) -> list[float]:
    penalties = Penalties(sampling, prompt)
    for token in reply:
        penalties.note(token)
    changed = penalties.applied(NumpyLogits(np.array(logits, dtype=np.float32)))
    return changed.values(range(len(logits)))


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    after = logits_after(Sampling(repetition_penalty=2.0), [4, -4, 4, 4], prompt=[0, 1, 1], reply=[2, 2, 0])
    assert after == [2, -8, 2, 4]


def test_presence_counts_once_and_frequency_each_time_and_the_prompt_never() -> None:
    sampling = Sampling(presence_penalty=1.0, frequency_penalty=0.25)
    assert logits_after(sampling, [4, 4, 4, 4], prompt=[0, 1], reply=[1, 2, 2, 2]) == [4, 2.75, 2.25, 4]


def test_negative_penalties_favour_what_was_said() -> None:
    assert logits_after(Sampling(presence_penalty=-1.0), [4, 4], prompt=[], reply=[1]) == [4, 5]


def test_bias_comes_before_the_repetition_penalty_and_that_before_the_others() -> None:
    sampling = Sampling(logit_bias={0: 2.0, 1: -math.inf}, repetition_penalty=2.0, presence_penalty=1.0)
    assert logits_after(sampling, [4, 4, 4], prompt=[1], reply=[0]) == [2, -math.inf, 4]  # (4 + 2) / 2 - 1


def test_a_bias_of_minus_infinity_wins_over_any_penalty() -> None:
    sampling = Sampling(logit_bias={0: -math.inf}, repetition_penalty=0.5, presence_penalty=-2.0)
    assert logits_after(sampling, [4, 4], prompt=[0], reply=[0])[0] == -math.inf


def test_without_penalties_the_logits_are_not_copied() -> None:
    row = NumpyLogits(np.zeros(4, dtype=np.float32))
    penalties = Penalties(Sampling(), [0, 1])
    penalties.note(2)
    assert penalties.applied(row) is row


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="token 9 is biased or was seen, but the model's vocabulary has 4"):
        logits_after(Sampling(logit_bias={9: 1.0}), [1, 2, 3, 4], prompt=[], reply=[])


ids = st.lists(st.integers(0, 7), max_size=20)


@given(
    st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=8, max_size=8),
    ids,
    ids,
    st.dictionaries(st.integers(0, 7), st.floats(-100, 100)),
    st.floats(0.5, 2),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_penalties_equal_the_formula(
    logits: list[float],
    prompt: list[int],
    reply: list[int],
    bias: dict[int, float],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    sampling = Sampling(
        logit_bias=bias, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    counts = Counter(reply)
    expected = [logit + bias.get(token, 0) for token, logit in enumerate(logits)]
    for token in {*prompt, *reply}:
        expected[token] *= repetition if expected[token] < 0 else 1 / repetition
    for token, count in counts.items():
        expected[token] -= presence + frequency * count
    assert logits_after(sampling, logits, prompt, reply) == pytest.approx(expected, rel=1e-5, abs=1e-5)
