"""What tune() tries and what it chooses, from times that the tests make up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.errors import DeviceError
from embedllm.profiling.tuning.search import (
    LEAST_ROUNDS,
    MOST_ROUNDS,
    PROMPT,
    TOKENS,
    Candidate,
    Timing,
    Trials,
    choose,
    measure,
)

CPU, OTHER = Candidate(device="cpu"), Candidate(device="openvino")
ONE, SPINNING = (
    Candidate(device="cpu", runtime=runtime) for runtime in (RuntimeOptions(threads=1), RuntimeOptions(spinning=True))
)
ALL = (CPU, OTHER, SPINNING, ONE)
times = st.floats(0.01, 100)


def timing(seconds: float) -> Timing:
    return Timing(token_s=seconds / 2 / PROMPT, step_s=seconds / 2 / TOKENS)


def trials(by_candidate: Mapping[Candidate, Sequence[float]]) -> Trials:
    """Times by round."""
    return Trials({one: dict(enumerate(map(timing, seconds))) for one, seconds in by_candidate.items()})


def test_a_time_is_of_a_prompt_and_a_reply() -> None:
    assert Timing(token_s=0.01, step_s=0.1).seconds == pytest.approx(256 * 0.01 + 64 * 0.1)


# --- the choice


@pytest.mark.parametrize(
    ("default", "other", "wins"),
    [
        ([1, 1, 1], [0.9, 0.9, 0.9], True),
        ([1, 1, 1], [0.96, 0.96, 0.96], False),  # 5 % are asked for
        ([1, 1], [0.5, 0.5], False),  # in three rounds
        ([1, 1, 1], [0.5, 0.5, 1.1], False),  # in each of three
        ([1, 1, 1, 1], [0.5, 0.5, 0.5, 1.1], True),  # in three of four
        ([1, 2, 4], [0.9, 1.8, 3.6], True),  # rounds are compared, not their medians: the machine grew slower
        ([1, 1, 1], [2, 2, 2], False),
    ],
)
def test_another_way_wins_only_when_it_is_clearly_faster(default: list[float], other: list[float], wins: bool) -> None:
    choice = choose(trials({CPU: default, ONE: other}), automatic="cpu")
    assert choice.runtime == {"cpu": ONE.runtime if wins else DEFAULT}
    assert choice.device == "cpu"


def test_spinning_has_to_gain_more() -> None:
    assert choose(trials({CPU: [1] * 3, SPINNING: [0.92] * 3}), automatic="cpu").runtime == {"cpu": DEFAULT}
    assert choose(trials({CPU: [1] * 3, SPINNING: [0.88] * 3}), automatic="cpu").runtime == {"cpu": SPINNING.runtime}


def test_a_device_is_held_against_the_best_of_what_auto_takes() -> None:
    found = trials({CPU: [1] * 3, ONE: [0.8] * 3, OTHER: [0.74] * 3})
    assert choose(found, automatic="cpu").device == "cpu"  # a device has to gain 10 %
    found.rounds[OTHER] = dict(enumerate([timing(0.7)] * 3))
    assert choose(found, automatic="cpu").device == "openvino"
    assert choose(found, automatic="cpu").runtime == {"cpu": ONE.runtime, "openvino": DEFAULT}


def test_what_auto_takes_anyway_decides_only_when_it_was_measured() -> None:
    assert choose(trials({OTHER: [1] * 3}), automatic="cpu").device == ""
    assert choose(trials({OTHER: [1] * 3}), automatic="cpu").runtime == {"openvino": DEFAULT}


rounds = st.dictionaries(st.integers(0, MOST_ROUNDS - 1), times.map(timing))
measured = st.fixed_dictionaries(dict.fromkeys(ALL, rounds)).map(Trials)


@given(measured, st.sampled_from(["cpu", "openvino", "cuda", ""]))
def test_nothing_wins_that_was_not_faster_in_most_of_enough_rounds(found: Trials, automatic: str) -> None:
    choice = choose(found, automatic=automatic)
    assert choice.runtime.keys() == {one.device for one in (CPU, OTHER) if found.rounds[one]}
    assert (choice.device != "") == (automatic in choice.runtime)
    wins = [
        (Candidate(device=device, runtime=runtime), Candidate(device=device))
        for device, runtime in choice.runtime.items()
    ]
    if choice.device:
        pair = (Candidate(device=device, runtime=choice.runtime[device]) for device in (choice.device, automatic))
        wins.append((next(pair), next(pair)))
    for winner, base in wins:
        if winner != base:
            ratios = found.ratios(winner, base)
            assert len(ratios) >= LEAST_ROUNDS
            assert median(ratios) < 0.95
            assert sum(ratio < 1 for ratio in ratios) > len(ratios) / 2


@given(measured, st.sampled_from([0.5, 2.0, 16.0]))  # powers of two, by which nothing is rounded
def test_a_machine_that_is_slower_throughout_chooses_the_same(found: Trials, factor: float) -> None:
    def times(old: Timing) -> Timing:
        return Timing(token_s=old.token_s * factor, step_s=old.step_s * factor)

    slower = Trials({one: {at: times(old) for at, old in rows.items()} for one, rows in found.rounds.items()})
    assert choose(slower, automatic="cpu") == choose(found, automatic="cpu")


# --- the trials


class Machine:
    """A clock that trials move on: by what each costs, whatever it measures."""

    def __init__(self, costs: Mapping[Candidate, float], seconds: Mapping[Candidate, float] | None = None) -> None:
        self.now = 0.0
        self.tried: list[Candidate] = []
        self._costs = costs
        self._seconds = seconds or {}

    def clock(self) -> float:
        return self.now

    def trial(self, candidate: Candidate) -> Timing:
        self.tried.append(candidate)
        self.now += self._costs[candidate]
        return timing(self._seconds.get(candidate, 1.0))

    def measure(self, seconds: float, trial: Callable[[Candidate], Timing] | None = None) -> Trials:
        return measure(list(self._costs), trial or self.trial, seconds=seconds, clock=self.clock)


def test_candidates_take_turns_forth_and_back() -> None:
    machine = Machine(dict.fromkeys(ALL, 1.0))
    machine.measure(1e9)
    assert machine.tried == [*ALL, *reversed(ALL)] * (MOST_ROUNDS // 2) + list(ALL)


@given(st.lists(times, min_size=4, max_size=4), st.floats(0.1, 500))
def test_the_time_is_kept_as_far_as_it_can_be_known(costs: list[float], seconds: float) -> None:
    """Beyond it goes no more than one trial: the first, or one that takes longer than all before it did."""
    machine = Machine(dict(zip(ALL, costs, strict=True)))
    found = machine.measure(seconds)
    assert machine.tried[0] == CPU
    assert machine.now <= seconds + max(costs)
    if len(set(costs)) == 1 and len(machine.tried) > 1:
        assert machine.now <= seconds * (1 + 1e-9)
    assert {one for one, by_round in found.rounds.items() if by_round} == set(machine.tried)


@given(st.floats(0.1, 10), st.floats(1, 200))
def test_what_is_begun_gets_enough_rounds_where_all_cost_the_same(cost: float, seconds: float) -> None:
    machine = Machine(dict.fromkeys(ALL, cost))
    found = machine.measure(seconds)
    counts = [len(by_round) for by_round in found.rounds.values() if by_round]
    assert len(counts) == 1 or min(counts) >= LEAST_ROUNDS


def test_what_is_hopeless_is_tried_once_and_leaves_its_time_to_others() -> None:
    machine = Machine(dict.fromkeys(ALL, 1.0), {ONE: 2.0})
    found = machine.measure(1e9)
    assert {one: len(by_round) for one, by_round in found.rounds.items()} == {CPU: 7, OTHER: 7, SPINNING: 7, ONE: 1}


def test_a_device_alone_is_measured_no_more_often_than_is_needed() -> None:
    assert Machine({OTHER: 1.0}).measure(1e9).rounds[OTHER].keys() == set(range(LEAST_ROUNDS))


@pytest.mark.parametrize("error", [DeviceError("out of memory"), MemoryError("out of memory")])
@pytest.mark.parametrize(("broken", "left"), [(CPU, {OTHER}), (ONE, {CPU, OTHER, SPINNING})])
def test_what_fails_is_given_up_and_a_default_takes_its_device_with_it(
    broken: Candidate, left: set[Candidate], error: Exception
) -> None:
    machine = Machine(dict.fromkeys(ALL, 1.0))

    def trial(candidate: Candidate) -> Timing:
        if candidate == broken:
            raise error
        return machine.trial(candidate)

    found = machine.measure(1e9, trial)
    assert found.failures == {broken: "out of memory"}
    assert {one for one, by_round in found.rounds.items() if len(by_round) > 1} == left
    assert choose(found, automatic="openvino").runtime.keys() == {one.device for one in left}
