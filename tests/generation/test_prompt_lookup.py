"""The lookup against a search through all of the text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from embedllm.generation.speculation.prompt_lookup import LONGEST, PromptLookup


def matches(tokens: Sequence[int]) -> dict[int, int]:
    """By place: how many tokens up to there are those at the end; from two on."""
    last = len(tokens) - 1
    lengths: dict[int, int] = {}
    for place in range(last):
        length = 0
        while length <= place and length < LONGEST and tokens[place - length] == tokens[last - length]:
            length += 1
        if length >= 2:
            lengths[place] = length
    return lengths


def repeated(tokens: Sequence[int], place: int, count: int) -> list[int]:
    """The tokens after a place; what comes after the last one is what comes after its likes."""
    found = list(tokens)
    for _ in range(count):
        found.append(found[len(found) - len(tokens) + place + 1])
    return found[len(tokens) :]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=5), st.integers(1, 9))
def test_it_finds_the_longest_match_and_what_followed_it(prompt: list[int], reply: list[int], count: int) -> None:
    lookup = PromptLookup(prompt)
    for token in reply:
        lookup.note(token)
    tokens = [*prompt, *reply]
    lengths = matches(tokens)
    assert lookup.length == max(lengths.values(), default=0)
    if not lengths:
        assert lookup.following(count) == []
        return
    latest = max(place for place, length in lengths.items() if length == lookup.length)
    assert lookup.following(count) == repeated(tokens, latest, count)


def test_a_long_match_is_gone_on_with_when_its_pairs_are_everywhere() -> None:
    copied = [*range(100, 120), 1, 2, *range(200, 240)]
    others = [1, 2, 0] * 40  # more places of the pair than are tried
    lookup = PromptLookup([*copied, *others, *copied[:20]])
    assert lookup.following(2) == [1, 2]
    lookup.note(1)
    lookup.note(2)
    assert lookup.following(3) == [200, 201, 202]


def test_one_token_is_no_match() -> None:
    assert PromptLookup([7, 8, 7]).length == 0
    assert PromptLookup([7]).length == PromptLookup([]).length == 0
