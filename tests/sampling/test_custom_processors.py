"""Functions that change the logits: what they are told, and what they may give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler

if TYPE_CHECKING:
    from embedllm.types import Logits


def no_token_twice(logits: Logits, tokens: Sequence[int]) -> Logits:
    seen = sorted(set(tokens))
    if not seen:
        return logits
    least = [-float("inf")] * len(seen)
    return logits.penalized(seen, biases=least, divisors=[1.0] * len(seen), subtracted=[0.0] * len(seen))


def test_a_processor_sees_prompt_and_reply_and_changes_what_is_chosen() -> None:
    sampler = Sampler(Sampling(temperature=0, processors=[no_token_twice]), [3])
    row = NumpyLogits(np.array([1, 2, 3, 4], dtype=np.float32))
    chosen: list[int] = []
    for _ in range(3):
        chosen.append(sampler.pick(row).token)
        sampler.note(chosen[-1])
    assert chosen == [2, 1, 0]


def test_processors_come_in_turn_after_the_penalties() -> None:
    seen: list[list[float]] = []

    def first(logits: Logits, tokens: Sequence[int]) -> Logits:
        seen.append(logits.values([0, 1]))
        return logits.masked((2).to_bytes(4, "little"))

    def second(logits: Logits, tokens: Sequence[int]) -> Logits:
        seen.append(logits.values([0, 1]))
        return logits

    sampling = Sampling(temperature=0, logit_bias={0: 5}, processors=[first, second])
    assert Sampler(sampling).pick(NumpyLogits(np.zeros(2, dtype=np.float32))).token == 1
    assert seen == [[5, 0], [-float("inf"), 0]]
    seen.clear()
    Sampler(Sampling(temperature=0, logit_bias={0: 5}, processors=[second], order=("processors", "penalties",
                     "temperature"))).pick(NumpyLogits(np.zeros(2, dtype=np.float32)))  # fmt: skip
    assert seen == [[0, 0]]


@pytest.mark.parametrize("wrong", [None, NumpyLogits(np.zeros(3, dtype=np.float32))])
def test_what_is_no_row_of_the_same_size_is_refused(wrong: object) -> None:
    sampler = Sampler(Sampling(processors=[lambda logits, tokens: wrong]))  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(ValueError, match=r"a processor of logits gave .*; expected logits of 2 tokens"):
        sampler.pick(NumpyLogits(np.zeros(2, dtype=np.float32)))
