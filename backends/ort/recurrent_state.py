"""The states of a recurrent model in ONNX Runtime: two buffers of each, which a step reads and writes in turn.

A step that fails or is stopped has then left no trace in what the next one reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.ort.runtime import ort
from embedllm.package.recurrent_state import state_shapes

if TYPE_CHECKING:
    from embedllm.package.architecture import Decoder
    from embedllm.types import F32


class States:
    """Of one sequence; of a model that has none, nothing."""

    def __init__(self, decoder: Decoder) -> None:
        shapes = state_shapes(decoder)
        self._held, self._next = (
            {name: np.zeros((1, *shape), np.float32) for name, shape in shapes.items()} for _ in range(2)
        )

    def bind(self, binding: ort.IOBinding) -> None:
        """For the next step."""
        for name, held in self._held.items():
            binding.bind_ortvalue_input(f"past_{name}", ort.OrtValue.ortvalue_from_numpy(held))
            binding.bind_ortvalue_output(f"present_{name}", ort.OrtValue.ortvalue_from_numpy(self._next[name]))

    def advance(self) -> None:
        """Takes what a step has written."""
        self._held, self._next = self._next, self._held

    def reset(self) -> None:
        """To those of a sequence of no token."""
        for held in self._held.values():
            held.fill(0)

    def copied(self) -> dict[str, F32]:
        return {name: held[0].copy() for name, held in self._held.items()}

    def put(self, states: Mapping[str, F32]) -> None:
        for name, held in self._held.items():
            held[0] = states[name]
