"""States of recurrent sequences that step together, [slots, ...] on two sides: a run reads one and writes the other.

The rows of a run are the slots of its KV (backends/sessions/shared_kv.py). A sequence's states are copied there when it
first takes part in a run of several, and stay while the same sequences step, so that steps copy nothing. They go back
to its own buffers when it is fed by itself, is kept for a rewind or gets another slot, and before a run in which it has
no part would write over them. For one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from embedllm.backends.ort.recurrent_state import HostStateMemory
from embedllm.backends.ort.runtime import ort
from embedllm.package.recurrent_state import state_shapes

if TYPE_CHECKING:
    from embedllm.backends.ort.recurrent_state import States
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.external_graph import ExternalGraph

_SIDES = 2


class _Place(NamedTuple):
    """Where states lie."""

    side: int
    slot: int


class SharedStates:
    """The buffers, and whose states lie where; of a model that has none, nothing."""

    def __init__(self, decoder: Decoder | ExternalGraph, *, most_slots: int) -> None:
        self._shapes = state_shapes(decoder)
        self._most_slots = most_slots
        self._places: dict[States, _Place] = {}
        self._side = 0  # that the latest run reads
        self.free()

    def bind(self, binding: ort.IOBinding, stepping: Mapping[States, int], slots: range) -> None:
        """Puts the states of those that step into their slots, and others out of the way, for a run over these slots.

        Raises MemoryError; then nothing is lost.
        """
        if not self._shapes:
            return
        self._reserve(slots.stop)
        self._move(stepping, slots)
        if self._bound[0] != slots:
            views = [{name: array[slots.start : slots.stop] for name, array in side.items()} for side in self._sides]
            values = [{name: ort.OrtValue.ortvalue_from_numpy(one) for name, one in side.items()} for side in views]
            self._bound = slots, values
        past, present = self._bound[1][self._side], self._bound[1][1 - self._side]
        for name, value in past.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", present[name])

    def end_run(self, stepping: Mapping[States, int]) -> None:
        """After the run that was bound. One that failed has left no trace in what it read."""
        if self._shapes:
            self._places |= {states: _Place(1 - self._side, slot) for states, slot in stepping.items()}

    def free(self) -> None:
        """Frees the buffers; not where states lie there."""
        if not self._places:
            self._hold([{} for _ in range(_SIDES)], slots=0)

    def give_back(self, states: States) -> None:
        """Copies a sequence's states to buffers of its own."""
        states.take(self._at(self._places[states]))

    def forget(self, states: States) -> None:
        """Of a sequence that needs them no more."""
        del self._places[states]
        states.elsewhere = None

    def _move(self, stepping: Mapping[States, int], slots: range) -> None:
        self._side = next((self._places[states].side for states in stepping if states in self._places), 0)
        wanted = {states: _Place(self._side, slot) for states, slot in stepping.items()}
        for states, place in list(self._places.items()):
            if wanted.get(states) != place and (states in wanted or place.slot in slots):
                self.give_back(states)
        for states, place in wanted.items():
            if states.elsewhere is not self:
                states.copy_to(self, self._at(place))
                self._places[states] = place

    def _reserve(self, slots: int) -> None:
        if slots <= self._slots:
            return
        count = min(max(slots, 2 * self._slots), self._most_slots)
        larger = [
            {name: np.empty((count, *shape), HostStateMemory.dtype) for name, shape in self._shapes.items()}
            for _ in range(_SIDES)
        ]
        for states in list(self._places):
            self.give_back(states)
        self._hold(larger, count)

    def _hold(self, sides: list[dict[str, np.ndarray]], slots: int) -> None:
        self._sides = sides  # by name, [slots, ...]
        self._slots = slots  # that there is room for
        self._bound: tuple[range, list[dict[str, ort.OrtValue]]] = range(0), []  # of some slots, by side

    def _at(self, place: _Place) -> dict[str, np.ndarray]:
        return {name: array[place.slot : place.slot + 1] for name, array in self._sides[place.side].items()}
