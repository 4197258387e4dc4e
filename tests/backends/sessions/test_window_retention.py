"""Which rows of KV are kept, against sets of them that every step of a sequence is played on."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends.sessions import window_retention
from embedllm.backends.sessions.window_retention import FIRST, NEWEST, PROMPT, STEP, WindowedKvRetention, most_rows

WINDOWS = {"0.key": 300, "1.key": 40}
Event = tuple[Literal["feed", "step", "rewind", "all"], int]
EVENTS = st.lists(
    st.tuples(st.sampled_from(["feed", "feed", "step", "rewind", "all"]), st.integers(0, 900)), min_size=5, max_size=30
)


def rows(spans: list[tuple[int, int]]) -> set[int]:
    return {row for start, stop in spans for row in range(start, stop)}


@given(events=EVENTS)
def test_from_every_place_that_it_goes_back_to_all_that_a_window_sees_is_there(events: list[Event]) -> None:
    kept, held = WindowedKvRetention(WINDOWS), 0
    there: dict[str, set[int]] = {name: set() for name in WINDOWS}
    for kind, number in events:
        if kind == "rewind":
            held = kept.back(number % (held + 1))
            kept.rewind(held)
        elif kind == "all":
            kept.keeps_all = number % 4 == 0
        else:
            if kind == "step":
                kept.end_prompt(held)
            if kept.may_forget(held):
                freed = kept.forget(held)
                for name in WINDOWS:
                    assert all(gone in kept.gone(name, held) and set(range(*some)) <= set(range(*gone))
                               for gone, some in freed[name])  # fmt: skip
                    there[name] -= rows([some for _, some in freed[name]])
                    assert there[name] == rows(kept.of(name, held)) | {row for row in there[name] if row >= held}
            fed = number if kind == "feed" else 1
            for name in WINDOWS:
                there[name] |= set(range(held, held + fed))
            held += fed
        for name, window in WINDOWS.items():
            assert rows(kept.of(name, held)) <= there[name]
            assert rows(kept.of(name, held)) ^ rows(kept.gone(name, held)) == set(range(held))
            for place in {kept.back(number % (held + 1)), kept.back(held // 2), held}:
                assert kept.back(place) == place
                assert set(range(max(place - window + 1, 0), place)) <= there[name]
            assert set(range(kept.whole(held))) <= there[name]
            assert len(rows(kept.of(name, held))) <= most_rows(window, held, 900) or kept.keeps_all or kind == "all"


def test_the_beginning_the_end_of_the_prompt_and_the_newest_are_kept() -> None:
    kept = WindowedKvRetention({"0.key": 100})
    kept.end_prompt(3000)
    assert kept.forget(5000)["0.key"] == [
        ((FIRST, 3000 - PROMPT - 99),) * 2, ((3000, 5000 - NEWEST - 99),) * 2]  # fmt: skip
    newest = 5000 - NEWEST
    assert kept.of("0.key", 5000) == [(0, FIRST), (3000 - PROMPT - 99, 3000), (newest - 99, 5000)]
    assert [kept.back(at) for at in (0, 100, FIRST, 2000, 2990, 3500, newest, 5000)] == [
        0, 100, FIRST, FIRST, 2990, 3000, newest, 5000]  # fmt: skip
    assert kept.whole(5000) == FIRST
    assert [kept.has(*span, 5000) for span in ((0, FIRST), (0, FIRST + 1), (newest, 5000), (2000, 2000))] == [
        True, False, True, True]  # fmt: skip


def test_nothing_is_forgotten_before_it_is_worth_it_or_without_windows() -> None:
    kept = WindowedKvRetention({"0.key": 100})
    least = FIRST + STEP + NEWEST + 99
    assert not kept.may_forget(least - 1)
    assert kept.may_forget(least)
    kept.forget(least)
    assert not kept.may_forget(least + STEP - 1)
    assert kept.may_forget(least + STEP)
    plain = WindowedKvRetention({})
    assert not plain.may_forget(10**6)
    assert (plain.of("0.key", 9), plain.whole(9), plain.back(5)) == ([(0, 9)], 9, 5)


def test_what_a_rewound_sequence_had_behind_its_place_is_no_place_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_retention, "FIRST", 10)
    kept = WindowedKvRetention({"0.key": 5})
    kept.end_prompt(900)
    kept.forget(2000)
    kept.rewind(900)
    kept.forget(901)
    assert kept.back(899) == 899
    assert kept.of("0.key", 901) == [(0, 10), (900 - PROMPT - 4, 901)]
