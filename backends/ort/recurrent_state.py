"""The states of a recurrent model in ONNX Runtime: two buffers of each, which a step reads and writes in turn.

A step that fails or is stopped has then left no trace in what the next one reads. States to which a sequence may go
back are not copied: their buffers are left alone, and others take their place.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from embedllm.backends.ort.runtime import ort
from embedllm.package.recurrent_state import state_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from embedllm.package.architecture.decoder import Decoder

    Buffers: TypeAlias = dict[str, ort.OrtValue]

_SPARE = 2  # sets of buffers that nobody uses, for the next ones to be kept


class StateMemory(Protocol):
    """Where states lie: an engine whose sessions stay on its device, or the host."""

    dtype: type[np.floating]

    def place(self, array: np.ndarray) -> ort.OrtValue:
        """A copy of an array, or the array itself where it lies there."""
        ...

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        """Puts an array where another of its shape and type is."""
        ...


class HostStateMemory:
    """The machine's own memory, for the CPU."""

    dtype: type[np.floating] = np.float32

    def place(self, array: np.ndarray) -> ort.OrtValue:
        return ort.OrtValue.ortvalue_from_numpy(array)

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        value.update_inplace(array)


class OtherPlace(Protocol):
    """Where the newest states of some sequences lie instead: shared_states.py."""

    def give_back(self, states: States) -> None:
        """Has them take() what lies there, and forgets them."""
        ...

    def forget(self, states: States) -> None:
        """Of a sequence that needs them no more."""
        ...


class KeptStates:
    """States that stay as they are while this exists."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers


class States:
    """Of one sequence; of a model that has none, nothing."""

    def __init__(self, decoder: Decoder, memory: StateMemory) -> None:
        self.elsewhere: OtherPlace | None = None  # where the newest lie, of a sequence that steps with others
        self._memory = memory
        self._shapes = state_shapes(decoder)
        self._spare: list[Buffers] = []
        self._current, self._next = self._new(), self._new()
        self._snapshot: weakref.ref[KeptStates] | None = None  # of those that are held; one at most

    def bind(self, binding: ort.IOBinding) -> None:
        """For the next step."""
        self._fetch()
        for name, value in self._current.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", self._next[name])

    def advance(self) -> None:
        """Takes what a step has written."""
        free = self._take() if self._is_kept() else self._current
        self._current, self._next, self._snapshot = self._next, free, None

    def follow(self, compute: Callable[[Buffers, Buffers], None]) -> None:
        """Takes what is computed of those that are held, from the first buffers to the second.

        These are the same where nobody goes back to what is held: writing in place takes half the time.
        """
        self._fetch()
        if self._is_kept():
            compute(self._current, self._next)
            self.advance()
        else:
            compute(self._current, self._current)

    def reset(self) -> None:
        """To those of a sequence of no token."""
        self._leave()
        if self._is_kept():
            self._current, self._snapshot = self._take(), None
        for name, value in self._current.items():
            self._memory.write(value, self._zeros(name))

    def keep(self) -> KeptStates:
        """Those that are held now."""
        self._fetch()
        states = self._snapshot and self._snapshot()
        if states is None:
            states = KeptStates(self._current)
            weakref.finalize(states, self._drop, self._current).atexit = False
            self._snapshot = weakref.ref(states)
        return states

    def put(self, states: KeptStates) -> None:
        """Goes back to those."""
        self._leave()
        if states.buffers is self._current:
            return
        before, was_kept = self._current, self._is_kept()
        self._current, self._snapshot = states.buffers, weakref.ref(states)
        if not was_kept:
            self._drop(before)

    def close(self) -> None:
        """Frees them."""
        self._leave()
        self._current, self._next, self._shapes = {}, {}, {}
        self._spare.clear()

    def take(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copies of these, [1, ...] by name, in place of those that are held."""
        for name, value in self._next.items():
            self._memory.write(value, arrays[name])
        self.advance()
        self._leave()

    def copy_to(self, place: OtherPlace, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes those that are held to these, [1, ...] by name, where the newest lie from now on."""
        self._fetch()
        for name, value in self._current.items():
            np.copyto(arrays[name], value.numpy())
        self.elsewhere = place

    def _fetch(self) -> None:
        if self.elsewhere is not None:
            self.elsewhere.give_back(self)

    def _leave(self) -> None:
        if self.elsewhere is not None:
            self.elsewhere.forget(self)

    def _is_kept(self) -> bool:
        return self._snapshot is not None and self._snapshot() is not None

    def _drop(self, buffers: Buffers) -> None:
        """Of which nobody goes back to any more."""
        if self._shapes and buffers is not self._current and len(self._spare) < _SPARE:
            self._spare.append(buffers)

    def _take(self) -> Buffers:
        return self._spare.pop() if self._spare else self._new()

    def _new(self) -> Buffers:
        return {name: self._memory.place(self._zeros(name)) for name in self._shapes}

    def _zeros(self, name: str) -> np.ndarray:
        return np.zeros((1, *self._shapes[name]), self._memory.dtype)
