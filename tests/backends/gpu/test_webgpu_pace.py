"""Which way of stepping the clock chooses."""

from __future__ import annotations

import pytest

from embedllm.backends.gpu.webgpu_pace import _GAIN, _WINDOW, _WINDOWS, Pace

TRIED = _WINDOW * (_WINDOWS + 1) + 1  # steps of each way


class Steps:
    """Steps of some sessions in turn, each of which takes as long as its way does."""

    def __init__(self, **seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.pace = Pace("steps", list(seconds), lambda: self.now)
        self.ways: list[str] = []

    def run(self, count: int, *, start: int = 100, sessions: int = 1) -> None:
        for at in range(count):
            for session in range(sessions):
                self.pace.note(session, start + at)
                self.ways.append(self.pace.way)
                self.now += self.seconds[self.pace.way]


@pytest.mark.parametrize(("seconds", "chosen"), [
    ({"one": 1.0, "other": 0.5}, "other"), ({"one": 1.0, "other": _GAIN - 0.01}, "other"),
    ({"one": 1.0, "other": 2.0}, "one"), ({"one": 1.0, "other": 0.9, "third": 0.5}, "third"),
    ({"one": 1.0, "other": 0.5, "third": 0.9}, "other"), ({"one": 1.0, "other": 0.99, "third": 0.98}, "one"),
])  # fmt: skip
def test_the_fastest_way_is_kept_to(seconds: dict[str, float], chosen: str) -> None:
    steps, tried = Steps(**seconds), len(seconds) * TRIED
    steps.run(tried)
    assert steps.ways[0] == "one"
    assert set(steps.ways) == set(seconds)
    steps.seconds[chosen] = 100.0  # what comes later is not timed
    steps.run(3 * tried)
    assert set(steps.ways[tried:]) == {chosen}


def test_what_lies_between_requests_does_not_count() -> None:
    steps = Steps(one=1.0, other=0.5)
    for request in range(40):
        steps.run(_WINDOW + 1)
        steps.now += 1000.0 * (request % 2)
    assert steps.pace.way == "other"


def test_nor_do_windows_that_something_else_delayed() -> None:
    steps = Steps(one=1.0, other=2.0)
    steps.run(2 * _WINDOW + 2)
    steps.now += 1000.0
    steps.run(2 * TRIED, start=100 + 2 * _WINDOW + 2)
    assert steps.pace.way == steps.ways[-1] == "one"


def test_sessions_in_turn_are_not_timed() -> None:
    steps = Steps(one=1.0, other=0.5)
    steps.run(2 * TRIED, sessions=2)
    assert set(steps.ways) == {"one"}
    steps.run(2 * TRIED)
    assert steps.pace.way == "other"
