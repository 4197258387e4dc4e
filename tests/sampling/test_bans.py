"""Tokens that may not come next: too early an end, bad words, n-grams that were there."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.sampling.bans import BannedTokens, spelled
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler
from tests.support.fakes import Bytes

SIZE = 6


def forbidden(rule: BannedTokens, size: int = SIZE) -> list[int]:
    values = rule.applied(NumpyLogits(np.zeros(size, dtype=np.float32))).values(range(size))
    assert set(values) <= {0, -inf}
    return [token for token, value in enumerate(values) if value == -inf]


def after(sampling: Sampling, prompt: list[int], reply: list[int]) -> list[int]:
    rule = BannedTokens(sampling, prompt)
    for token in reply:
        rule.note(token)
    return forbidden(rule)


def test_stop_tokens_are_forbidden_until_the_reply_has_its_least_tokens() -> None:
    rule = BannedTokens(Sampling(), [5, 5, 5], stop_tokens=[2, 4, 999], min_tokens=2)
    assert forbidden(rule) == [2, 4]
    rule.note(0)
    assert forbidden(rule) == [2, 4]
    rule.note(0)
    assert forbidden(rule) == []


def test_a_bad_word_cannot_be_completed_and_its_beginning_may_come() -> None:
    sampling = Sampling(bad_words=[[3], [0, 1, 2], [1, 1]])
    assert after(sampling, [], []) == [3]
    assert after(sampling, [], [0]) == [3]
    assert after(sampling, [], [0, 1]) == [1, 2, 3]
    assert after(sampling, [], [0, 1, 0]) == [3]
    assert after(sampling, [0], [1]) == [1, 3]  # what the prompt begins is no word of the reply


def test_an_ngram_of_prompt_or_reply_does_not_come_again() -> None:
    sampling = Sampling(no_repeat_ngram=3)
    assert after(sampling, [0, 1, 2], [0]) == []
    assert after(sampling, [0, 1, 2], [0, 1]) == [2]
    assert after(sampling, [0, 1, 2, 0, 1, 3], [0, 1]) == [2, 3]
    assert after(sampling, [0, 0], []) == []
    assert after(sampling, [0, 0, 0], []) == [0]
    assert after(Sampling(no_repeat_ngram=1), [4], [1]) == [1, 4]


@given(st.lists(st.integers(0, SIZE - 1), max_size=40), st.integers(0, 40), st.integers(1, 4))
def test_ngrams_equal_a_search_of_all(tokens: list[int], prompt: int, size: int) -> None:
    grams = {tuple(tokens[place : place + size]) for place in range(len(tokens) - size + 1)}
    last = tuple(tokens[len(tokens) - size + 1 :]) if len(tokens) >= size - 1 else None
    expected = [token for token in range(SIZE) if last is not None and (*last, token) in grams]
    assert after(Sampling(no_repeat_ngram=size), tokens[:prompt], tokens[prompt:]) == expected


def test_what_is_forbidden_stays_so_whatever_bias_and_processors_say() -> None:
    sampling = Sampling(temperature=0, bad_words=[[1]], logit_bias={1: 100}, processors=[lambda logits, tokens: logits])
    assert Sampler(sampling).pick(NumpyLogits(np.zeros(3, dtype=np.float32))).token == 0


def test_nothing_forbidden_copies_nothing() -> None:
    row = NumpyLogits(np.zeros(SIZE, dtype=np.float32))
    assert BannedTokens(Sampling(no_repeat_ngram=2), [1, 2, 3], stop_tokens=[4]).applied(row) is row


def test_texts_become_tokens_as_they_are_and_as_words_after_a_space() -> None:
    sampling = spelled(Sampling(bad_words=["ab", " c", [7]]), lambda text: Bytes().encode(text, special=False))
    assert sampling.bad_words == ((97, 98), (32, 97, 98), (32, 99), (7,))


def test_texts_are_refused_where_there_is_no_tokenizer() -> None:
    with pytest.raises(ValueError, match="the bad word 'ab' is a text; give its token ids"):
        Sampler(Sampling(bad_words=["ab"]))
