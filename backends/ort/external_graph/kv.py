"""Keys and values of a sequence in a graph that another exporter has written, [1, heads, T, size] each.

Two ways to keep them: as the graph gives them back, a copy at every step; or, where its attention appends in place, in
buffers of a growing capacity that are past and present at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from embedllm.backends.ort.runtime import ort

if TYPE_CHECKING:
    from embedllm.backends.ort.external_graph.placement import Placement

    Pairs: TypeAlias = Sequence[tuple[str, str]]  # what the graph calls past and present

_STEP = 256  # tokens; capacities are multiples of it
_GROWTH = 1.5  # each growth copies the KV once, so that a token costs a constant number of copies on average


class CopiedKv:
    """As the graph gives them back."""

    def __init__(self, empty: Sequence[np.ndarray], placement: Placement) -> None:
        self._placement = placement
        self._values = [placement.hold(array) for array in empty]

    def reserve(self, end: int) -> int:
        """Makes room for that many tokens; how long a mask of them is."""
        return end

    def bind(self, binding: ort.IOBinding, pairs: Pairs) -> None:
        """The past, and what takes the present."""
        for (past, present), value in zip(pairs, self._values, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_output(present, *self._placement.where)

    def take(self, present: Sequence[ort.OrtValue]) -> None:
        """What a step gave back."""
        self._values = list(present)

    def save(self) -> list[ort.OrtValue]:
        """To be put back when the steps that follow are undone."""
        return self._values

    def put_back(self, values: list[ort.OrtValue]) -> None:
        self._values = values

    def cut(self, position: int) -> None:
        """Forgets what comes after."""
        # copies, as what an OrtValue shows does not keep the array that it was made of
        self._replace([array[:, :, :position].copy() for array in self.arrays()])

    def append(self, position: int, state: Sequence[np.ndarray]) -> None:
        """state: [heads, T, size], of the tokens from `position` on."""
        pairs = zip(self.arrays(), state, strict=True)
        self._replace([np.concatenate([old, new[None].astype(old.dtype)], axis=2) for old, new in pairs])

    def arrays(self) -> list[np.ndarray]:
        """Keys and values of at least the tokens that are held."""
        return [self._placement.read(value) for value in self._values]

    def clear(self) -> None:
        self._values = []

    def _replace(self, arrays: Sequence[np.ndarray]) -> None:
        self._values = [self._placement.hold(array) for array in arrays]


class AppendedKv:
    """In buffers that attention appends to: a rewind is a number that nobody here needs to know."""

    def __init__(self, empty: Sequence[np.ndarray], context: int, placement: Placement) -> None:
        self._placement = placement
        self._values = [placement.hold(array) for array in empty]
        self._context = context
        self._capacity = 0

    def bind(self, binding: ort.IOBinding, pairs: Pairs) -> None:
        for (past, present), value in zip(pairs, self._values, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)

    def take(self, present: Sequence[ort.OrtValue]) -> None:
        """Nothing: it is where it belongs."""

    def save(self) -> list[ort.OrtValue]:
        """Nothing: what comes after a position does not count."""
        return []

    def put_back(self, values: list[ort.OrtValue]) -> None: ...

    def cut(self, position: int) -> None: ...

    def append(self, position: int, state: Sequence[np.ndarray]) -> None:
        end = position + state[0].shape[1]
        self.reserve(end)
        for index, new in enumerate(state):
            array = self._placement.read(self._values[index])
            array[0, :, position:end] = new
            if not self._placement.is_host:  # there it was the buffer itself
                self._values[index] = self._placement.hold(array)

    def arrays(self) -> list[np.ndarray]:
        return [self._placement.read(value) for value in self._values]

    def clear(self) -> None:
        self._values = []
        self._capacity = 0

    def reserve(self, end: int) -> int:
        """Buffers grow one by one, so that only one is there twice."""
        if end > self._capacity:
            self._grow(end)
        return self._capacity if self._placement.pads else end

    def _grow(self, end: int) -> None:
        least = max(end, int(self._capacity * _GROWTH))
        capacity = min(-(-least // _STEP) * _STEP, self._context)
        for index, value in enumerate(self._values):
            old = self._placement.read(value)
            _, heads, old_capacity, size = old.shape
            # zeros, because attention multiplies what it does not see by nothing, and NaN times nothing is NaN
            new = np.zeros((1, heads, capacity, size), old.dtype)
            new[:, :, :old_capacity] = old
            self._values[index] = self._placement.hold(new)
        self._capacity = capacity
