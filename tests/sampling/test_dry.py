"""DRY by hand, and against a search of the whole sequence at every step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.sampling.dry import Dry
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling

SIZE = 6
BREAKER = 5  # whose text is a newline; those of the others are a, b, c, d, e
OPTIONS = Sampling(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=2)


def text(tokens: list[int]) -> str:
    return "".join("abcde\n"[token] for token in tokens)


def subtracted(sampling: Sampling, prompt: list[int], reply: list[int]) -> list[float]:
    """What each token of the next step loses."""
    dry = Dry(sampling, prompt, decode=text)  # type: ignore[arg-type]  # lists are sequences
    for token in reply:
        dry.note(token)
    return [-value for value in dry.applied(NumpyLogits(np.zeros(SIZE, dtype=np.float32))).values(range(SIZE))]


def test_a_token_that_would_prolong_a_repetition_loses_more_the_longer_it_is() -> None:
    assert subtracted(OPTIONS, [0, 1, 2], [0]) == [0, 0, 0, 0, 0, 0]  # "abca": one token repeats
    assert subtracted(OPTIONS, [0, 1, 2], [0, 1]) == [0, 0, 0.5, 0, 0, 0]  # "abcab": c after two, 0.5 * 2 ** 0
    assert subtracted(OPTIONS, [0, 1, 2, 3], [0, 1, 2]) == [0, 0, 0, 1, 0, 0]  # d after three: 0.5 * 2 ** 1


def test_the_longest_of_several_repetitions_counts() -> None:
    # "abcd", "bcd" and now "abc": d after three tokens and after two
    assert subtracted(OPTIONS, [0, 1, 2, 3, 4, 1, 2, 3, 4], [0, 1, 2]) == [0, 0, 0, 1, 0, 0]
    # "abc", "db" + e, and now "ab": only c follows two equal tokens
    assert subtracted(OPTIONS, [0, 1, 2, 3, 1, 4], [0, 1]) == [0, 0, 0.5, 0, 0, 0]


def test_no_repetition_reaches_across_a_breaker_and_a_breaker_loses_nothing() -> None:
    assert subtracted(OPTIONS, [0, BREAKER, 1, 2], [0, BREAKER, 1]) == [0] * SIZE  # one token since the newline
    assert subtracted(OPTIONS, [0, 1, BREAKER], [0, 1]) == [0] * SIZE
    no_breakers = Sampling(dry_multiplier=0.5, dry_base=2.0, dry_breakers=())
    assert subtracted(no_breakers, [0, 1, BREAKER], [0, 1]) == [0, 0, 0, 0, 0, 0.5]


def test_only_the_range_is_searched() -> None:
    short = Sampling(dry_multiplier=0.5, dry_base=2.0, dry_range=4)
    assert subtracted(short, [0, 1, 2], [0, 1]) == [0] * SIZE  # of "bcab", one token repeats
    assert subtracted(Sampling(dry_multiplier=0.5, dry_base=2.0, dry_range=5), [0, 1, 2], [0, 1])[2] == 0.5


def test_the_penalty_of_a_long_repetition_stays_a_number() -> None:
    most = subtracted(Sampling(dry_multiplier=100, dry_base=2.0), [0] * 3000, [])[0]
    assert 1e20 < most < float("inf")


def test_without_a_repetition_the_logits_are_not_copied() -> None:
    row = NumpyLogits(np.zeros(SIZE, dtype=np.float32))
    assert Dry(OPTIONS, [0, 1, 2], decode=lambda tokens: "").applied(row) is row


def test_texts_to_break_at_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"dry_breakers are texts and there is no tokenizer"):
        Dry(OPTIONS, [])


def naive(tokens: list[int], allowed: int, reach: int) -> list[float]:
    """The rule as its source tells it: for each earlier place of the last token, count backwards."""
    tokens = tokens[-reach:] if reach else tokens
    longest = [0] * SIZE
    if not tokens or tokens[-1] == BREAKER:
        return [0.0] * SIZE
    for place in range(len(tokens) - 1):
        following = tokens[place + 1]
        length = 0
        while length <= place and tokens[place - length] == tokens[-1 - length] and tokens[place - length] != BREAKER:
            length += 1
        if following != BREAKER:
            longest[following] = max(longest[following], length)
    return [0.25 * 2.0 ** (length - allowed) if length >= allowed else 0.0 for length in longest]


ids = st.lists(st.sampled_from((0, 0, 1, 1, 2, 3, BREAKER)), max_size=30)


@given(ids, ids, st.integers(1, 4), st.sampled_from((0, 3, 10)))
def test_token_by_token_equals_a_search_of_all(prompt: list[int], reply: list[int], allowed: int, reach: int) -> None:
    sampling = Sampling(dry_multiplier=0.25, dry_base=2.0, dry_allowed_length=allowed, dry_range=reach)
    assert subtracted(sampling, prompt, reply) == naive(prompt + reply, allowed, reach)
