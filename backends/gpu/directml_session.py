"""One sequence on DirectML: its KV stays on the GPU, past and present at once.

DirectML's attention reads no past: what was there before must lie in the buffers that it writes. It counts the past as
nothing when it is given several tokens. So a prompt is read in one piece from the start, and what follows goes token by
token (docs/directml.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.gpu.session import DeviceEngine, DeviceSession, bound_to, empty_kv
from embedllm.backends.ort.runtime import device_errors
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.backends.base import Device, KeyValues
    from embedllm.types import F32

# how many tokens are read in the time in which one is made: 8 measured on a CPU, 210 on an H200, not known here
_READ_WHILE_MADE = 16
_UNKNOWN = -1  # in place of a token whose KV came from another session


class Gpu(DeviceEngine["Buffers"], Protocol):
    """What sessions need of an engine. Its lock is held while inputs are bound too, which copies them."""

    device: Device


class Buffers:
    """What a step reads and writes, at fixed places on the GPU."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        """capacity: tokens."""
        self.capacity = capacity
        self.kv = empty_kv(gpu, capacity)
        self.binding = bound_to(self.kv, gpu.session)


class DirectMLSession(DeviceSession[Buffers]):
    """One sequence. A step appends in place."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        super().__init__(gpu, capacity)
        self._gpu = gpu
        self._tokens: list[int] = []  # those whose KV is held

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        return NumpyLogits(self._append(tokens, rows=1)[-1])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._append(tokens, rows=len(tokens))

    def rewind(self, position: int) -> None:
        super().rewind(position)
        del self._tokens[position:]

    def import_state(self, state: KeyValues) -> None:
        start = self.position
        super().import_state(state)
        self._tokens += [_UNKNOWN] * (self.position - start)

    def close(self) -> None:
        super().close()
        self._tokens = []

    def _settle(self) -> None:
        with self._gpu.lock, device_errors(self._gpu.device):
            self._require_buffers().binding.synchronize_outputs()

    def _append(self, tokens: Sequence[int], *, rows: int) -> F32:
        """Reads tokens; the logits [rows, V] of the last of them. After a failure nothing was appended."""
        buffers = self._prepare(tokens)
        past, count = self._tokens, len(tokens)
        try:
            if self._reads_anew(count):
                logits = self._compute(buffers, [*past, *tokens], 0, rows)
            else:
                steps = [self._compute(buffers, [token], len(past) + at, 1) for at, token in enumerate(tokens)]
                logits = np.concatenate(steps[-rows:])
        except BaseException:
            self.position = len(past)
            raise
        self._tokens = [*past, *tokens]
        return logits

    def _reads_anew(self, count: int) -> bool:
        """Whether that many tokens, with all that are held before them, are read in one piece from the start."""
        if not self._tokens:
            return count > 1
        total = len(self._tokens) + count
        return count > 1 and count * _READ_WHILE_MADE >= total and _UNKNOWN not in self._tokens

    def _compute(self, buffers: Buffers, tokens: Sequence[int], start: int, rows: int) -> F32:
        """The logits [rows, V] of the last of some tokens, the first of which stands at `start`.

        The graph's own rule: several tokens stand at the start.
        """
        count, binding = len(tokens), buffers.binding
        end = start + count
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "position_ids": np.arange(start, end, dtype=np.int64)[None],
            "seqlens_k": np.array([end - 1], np.int32),
            "total_sequence_length": np.array([buffers.capacity], np.int32),
            "logits_at": np.arange(count - rows, count, dtype=np.int64),
        }
        with self._gpu.lock, device_errors(self._gpu.device):
            for name, values in inputs.items():
                binding.bind_cpu_input(name, values)
            binding.bind_output("logits")
            self._run(binding, self._running, end)
            logits = binding.get_outputs()[-1].numpy()  # bound last
        return logits[0].astype(np.float32, copy=False)
