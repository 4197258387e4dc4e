"""Which way of stepping the clock chooses."""

from __future__ import annotations

import pytest

from embedllm.backends.gpu.webgpu_pace import _GAIN, _WINDOW, _WINDOWS, Pace

TRIED = 2 * (_WINDOW * (_WINDOWS + 1) + 1)  # steps


class Steps:
    """Steps of some sessions in turn, each of which takes as long as its way does."""

    def __init__(self, one_by_one: float, ahead: float) -> None:
        self.now = 0.0
        self.seconds = {False: one_by_one, True: ahead}
        self.pace = Pace("steps", ("one by one", "ahead"), lambda: self.now)
        self.ways: list[bool] = []

    def run(self, count: int, *, start: int = 100, sessions: int = 1) -> None:
        for at in range(count):
            for session in range(sessions):
                self.pace.note(session, start + at)
                self.ways.append(self.pace.is_second)
                self.now += self.seconds[self.pace.is_second]


@pytest.mark.parametrize(("ahead", "is_chosen"), [(0.5, True), (_GAIN - 0.01, True), (2.0, False)])
def test_the_faster_way_is_kept_to(ahead: float, is_chosen: bool) -> None:
    steps = Steps(1.0, ahead)
    steps.run(TRIED)
    assert steps.ways[0] is False
    assert True in steps.ways
    steps.seconds[is_chosen] = 100.0  # what comes later is not timed
    steps.run(3 * TRIED)
    assert set(steps.ways[TRIED:]) == {is_chosen}


def test_what_lies_between_requests_does_not_count() -> None:
    steps = Steps(1.0, 0.5)
    for request in range(40):
        steps.run(_WINDOW + 1)
        steps.now += 1000.0 * (request % 2)
    assert steps.pace.is_second


def test_nor_do_windows_that_something_else_delayed() -> None:
    steps = Steps(1.0, 2.0)
    steps.run(2 * _WINDOW + 2)
    steps.now += 1000.0
    steps.run(TRIED, start=100 + 2 * _WINDOW + 2)
    assert not steps.pace.is_second
    assert steps.ways[-1] is False


def test_sessions_in_turn_are_not_timed() -> None:
    steps = Steps(1.0, 0.5)
    steps.run(TRIED, sessions=2)
    assert set(steps.ways) == {False}
    steps.run(TRIED)
    assert steps.pace.is_second
