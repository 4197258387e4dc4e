"""The states of a recurrent sequence on WebGPU, in places for turns: a run reads one and writes the next.

So a captured step has other buffers for what it reads and what it writes, and steps that ran ahead of the caller leave
those states as they were from which the sequence goes on when they are not wanted.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from embedllm.backends.ort.runtime import ort
from embedllm.package.recurrent_state import state_shapes

if TYPE_CHECKING:
    from embedllm.package.package import Package

PLACES = 5  # docs/webgpu.md#recurrent-models; of which two may hold what is not certain yet, twice
States: TypeAlias = list[ort.OrtValue]  # in the order of a model's


class StateMemory(Protocol):
    """What it needs of an engine. Its lock is held."""

    package: Package
    dtype: type[np.floating]

    def place(self, array: np.ndarray) -> ort.OrtValue:
        """A copy of an array on the GPU."""
        ...


class StateRing:
    """Of one sequence; of a model that has no states, nothing in a single place."""

    def __init__(self, memory: StateMemory) -> None:
        self._names = list(shapes := state_shapes(memory.package.decoder))
        self._shapes = [(1, *shape) for shape in shapes.values()]
        self._dtype = memory.dtype
        self.places = PLACES if shapes else 1
        self._states = [self._empty() for _ in range(self.places)]
        zeros = {shape: memory.place(np.zeros(shape, memory.dtype)) for shape in set(self._shapes)}
        self._zeros = [zeros[shape] for shape in self._shapes]

    @property
    def most_ahead(self) -> int:
        """Runs behind a place after which it holds, and the one before it, what it did."""
        return self.places - 2 if self._names else sys.maxsize

    def after(self, place: int, runs: int = 1) -> int:
        return (place + runs) % self.places

    def bind(self, binding: ort.IOBinding, place: int) -> None:
        """Has a run read that place, and write the next."""
        pairs = zip(self._names, self._states[place], self._states[self.after(place)], strict=True)
        for name, past, present in pairs:
            binding.bind_ortvalue_input(f"past_{name}", past)
            binding.bind_ortvalue_output(f"present_{name}", present)

    def reset(self, place: int) -> None:
        """To those of a sequence of no token."""
        self.write(place, self._zeros)

    def copies(self, place: int) -> States:
        """On the GPU, too."""
        states = self._empty()
        _copy(self._states[place], states)
        return states

    def write(self, place: int, states: States) -> None:
        _copy(states, self._states[place])

    def take(self, source: StateRing, place: int) -> None:
        """What is in that place of another one."""
        self.write(place, source._states[place])

    def _empty(self) -> States:
        return [ort.OrtValue.ortvalue_from_shape_and_type(shape, self._dtype, "webgpu") for shape in self._shapes]


def _copy(source: States, to: States) -> None:
    if source:
        ort.copy_tensors(source, to)
