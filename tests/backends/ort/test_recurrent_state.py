"""The buffers of states: two that take turns, and others while some are kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embedllm.backends.ort.recurrent_state import HostStateMemory, States
from embedllm.backends.ort.runtime import ort
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from tests.support.tiny_recurrent import tiny_lfm2


class Memory(HostStateMemory):
    """Counts what it was asked for."""

    def __init__(self) -> None:
        self.placed = 0

    def place(self, array: np.ndarray) -> ort.OrtValue:
        self.placed += 1
        return ort.OrtValue.ortvalue_from_numpy(array.copy())


class Run:
    """A run that adds one to what it reads."""

    def __init__(self, states: States) -> None:
        self._states = states

    def __call__(self) -> None:
        bound: dict[str, ort.OrtValue] = {}
        binding = SimpleNamespace(bind_ortvalue_input=bound.__setitem__, bind_ortvalue_output=bound.__setitem__)
        self._states.bind(binding)  # type: ignore[arg-type]  # all that is asked of a binding
        assert bound["past_conv.0"] is not bound["present_conv.0"]
        bound["present_conv.0"].update_inplace(bound["past_conv.0"].numpy() + np.float32(1))
        self._states.advance()


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def states(tmp_path: Path, memory: Memory) -> States:
    config = json.loads((tiny_lfm2(tmp_path) / "config.json").read_text())
    return States(describe(Config(config)), memory)


@pytest.fixture
def run(states: States) -> Run:
    return Run(states)


def value(states: States) -> float:
    found = states._current["conv.0"].numpy()
    assert found.shape == (1, 2, 64)
    assert np.ptp(found) == 0
    return float(found.flat[0])


def test_a_run_that_failed_leaves_what_the_next_one_reads(states: States, run: Run) -> None:
    run()
    states._next["conv.0"].update_inplace(np.full((1, 2, 64), np.nan, np.float32))  # and does not advance
    run()
    assert value(states) == 2


def test_kept_states_stay_what_they_are_until_they_are_gone_back_to(states: States, run: Run) -> None:
    run()
    first = states.keep()
    run()
    run()
    second = states.keep()
    run()
    assert value(states) == 4
    states.put(first)
    assert value(states) == 1
    run()
    assert value(states) == 2
    states.put(second)
    assert value(states) == 3
    states.reset()
    assert value(states) == 0
    run()
    states.put(first)
    assert value(states) == 1
    states.put(second)
    assert value(states) == 3


def test_states_that_are_kept_twice_lie_in_one_place(states: States, run: Run) -> None:
    run()
    first, again = states.keep(), states.keep()
    assert first is again
    del first
    run()
    run()
    states.put(again)
    assert value(states) == 1
    del again  # they are held now
    run()
    run()
    assert value(states) == 3


def test_buffers_that_nobody_goes_back_to_serve_again(states: States, run: Run, memory: Memory) -> None:
    """As guesses do it that are wrong at every step: nothing is copied, and no memory taken."""
    for step in range(10):
        run()
        kept = states.keep()
        run()
        run()
        states.put(kept)
        run()
        assert value(states) == 2 * (step + 1)
    assert memory.placed <= 4
    others = [states.keep()]
    for _ in range(5):
        run()
        others.append(states.keep())
    assert memory.placed <= 9
    del others
    assert len(states._spare) <= 2


def test_closed_states_hold_nothing(states: States, run: Run) -> None:
    run()
    kept = states.keep()
    states.close()
    del kept
    assert [states._current, states._next, states._spare] == [{}, {}, []]
