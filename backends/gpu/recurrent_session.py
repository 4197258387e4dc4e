"""One sequence of a recurrent model on a GPU: its states stay there, in two buffers of each for turns.

A step that fails or is stopped has then left no trace in what the next one reads. Wrapped by
backends/sessions/recurrent_session.py, which rewinds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.gpu.unbatched_session import Buffers, Gpu, UnbatchedSession
from embedllm.package.recurrent_state import state_shapes

if TYPE_CHECKING:
    from embedllm.backends.ort.runtime import ort
    from embedllm.package.lora.adapter import Adapter
    from embedllm.types import F32


class RecurrentSession(UnbatchedSession):
    """A session whose rewind leaves its states as they are, but for one to the beginning."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        super().__init__(gpu, capacity)
        shapes = state_shapes(gpu.package.decoder)
        self._none = {name: np.zeros((1, *shape), gpu.dtype) for name, shape in shapes.items()}
        self._now, self._next = ({name: gpu.place(zeros) for name, zeros in self._none.items()} for _ in range(2))

    def rewind(self, position: int) -> None:
        super().rewind(position)
        if not position:
            self._write(self._none)

    def states(self) -> dict[str, F32]:
        return {name: self._gpu.read(value)[0].astype(np.float32) for name, value in self._now.items()}

    def set_states(self, states: Mapping[str, F32]) -> None:
        self._write({name: states[name][None].astype(self._gpu.dtype) for name in self._now})

    def adapt(self, adapter: Adapter | None) -> None:
        if adapter is not None:
            raise ValueError("this device takes no adapters.")

    def close(self) -> None:
        super().close()
        self._now, self._next = {}, {}

    def _write(self, values: Mapping[str, np.ndarray]) -> None:
        for name, value in self._now.items():
            self._gpu.write(value, values[name])

    def _bind(self, buffers: Buffers, tokens: Sequence[int], *, logits_from: int) -> ort.IOBinding:
        binding = super()._bind(buffers, tokens, logits_from=logits_from)
        for name, value in self._now.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", self._next[name])
        return binding

    def _run(self, binding: ort.IOBinding, options: ort.RunOptions, end: int) -> None:
        super()._run(binding, options, end)
        self._now, self._next = self._next, self._now
