"""The states of a recurrent model in ONNX Runtime: two buffers of each, which a step reads and writes in turn.

A step that fails or is stopped has then left no trace in what the next one reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.ort.runtime import ort
from embedllm.package.recurrent_state import state_shapes

if TYPE_CHECKING:
    from embedllm.package.architecture import Decoder
    from embedllm.types import F32


class StateMemory(Protocol):
    """Where states lie: an engine whose sessions stay on its device, or the host."""

    dtype: type[np.floating]

    def place(self, array: np.ndarray) -> ort.OrtValue:
        """A copy of an array, or the array itself where it lies there."""
        ...

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        """Puts an array where another of its shape and type is."""
        ...

    def read(self, value: ort.OrtValue) -> np.ndarray: ...


class HostStateMemory:
    """The machine's own memory, for the CPU."""

    dtype: type[np.floating] = np.float32

    def place(self, array: np.ndarray) -> ort.OrtValue:
        return ort.OrtValue.ortvalue_from_numpy(array)

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        value.update_inplace(array)

    def read(self, value: ort.OrtValue) -> np.ndarray:
        return value.numpy()


class States:
    """Of one sequence; of a model that has none, nothing."""

    def __init__(self, decoder: Decoder, memory: StateMemory) -> None:
        self._memory = memory
        self._shapes = state_shapes(decoder)
        self._held, self._next = ({name: memory.place(self._zeros(name)) for name in self._shapes} for _ in range(2))

    def bind(self, binding: ort.IOBinding) -> None:
        """For the next step."""
        for name, held in self._held.items():
            binding.bind_ortvalue_input(f"past_{name}", held)
            binding.bind_ortvalue_output(f"present_{name}", self._next[name])

    def advance(self) -> None:
        """Takes what a step has written."""
        self._held, self._next = self._next, self._held

    def reset(self) -> None:
        """To those of a sequence of no token."""
        for name, held in self._held.items():
            self._memory.write(held, self._zeros(name))

    def copied(self) -> dict[str, F32]:
        return {name: self._memory.read(held)[0].astype(np.float32) for name, held in self._held.items()}

    def put(self, states: Mapping[str, F32]) -> None:
        for name, held in self._held.items():
            self._memory.write(held, states[name][None].astype(self._memory.dtype))

    def close(self) -> None:
        """Frees them."""
        self._held, self._next = {}, {}

    def _zeros(self, name: str) -> np.ndarray:
        return np.zeros((1, *self._shapes[name]), self._memory.dtype)
