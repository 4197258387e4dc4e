"""One sequence on WebGPU: its KV stays on the GPU, past and present at once.

Not backends/gpu/io_binding_engine.py's: prompts are fed in pieces where attention takes a limited number of tokens.
Steps are launched kernel by kernel; webgpu_steps.py has those that are captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.gpu.session import DeviceEngine, DeviceSession, bound_to, empty_kv
from embedllm.backends.ort.runtime import ort
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.types import F32, Logits

_STEP = 1024  # tokens; capacities are multiples of it


class Gpu(DeviceEngine["Buffers"], Protocol):
    """What sessions need of an engine. Its lock is held while inputs are bound too, which copies them."""

    chunk: int  # most tokens that attention takes at once


class Buffers:
    """What a step reads and writes, at fixed places on the GPU."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        """capacity: tokens; it is rounded up."""
        self.capacity = min(-(-max(capacity, 1) // _STEP) * _STEP, gpu.context)
        self.kv = empty_kv(gpu, self.capacity)
        self.logits = gpu.place(np.zeros((1, 1, gpu.package.decoder.vocabulary), gpu.dtype))
        self.binding = bound_to(self.kv, gpu.session)

    def close(self) -> None:
        """Releases what is not memory."""


class WebGpuSession(DeviceSession[Buffers]):
    """One sequence. A step appends in place."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        super().__init__(gpu, capacity)
        self._gpu = gpu
        self._given: dict[str, ort.OrtValue] = {}

    def feed(self, tokens: Sequence[int]) -> Logits:
        buffers = self._prepare(tokens)
        with self._whole():
            for piece in self._pieces(tokens):
                with self._gpu.lock:
                    self._bind(buffers, piece, logits_from=-1)
                    buffers.binding.bind_ortvalue_output("logits", buffers.logits)
                    self._run(buffers.binding, self._running, self.position + len(piece))
        return NumpyLogits(self._gpu.read(buffers.logits)[0, 0].astype(np.float32, copy=False))

    def feed_all(self, tokens: Sequence[int]) -> F32:
        buffers = self._prepare(tokens)
        rows: list[np.ndarray] = []
        with self._whole():
            for piece in self._pieces(tokens):
                with self._gpu.lock:
                    self._bind(buffers, piece, logits_from=0)
                    buffers.binding.bind_output("logits")
                    self._run(buffers.binding, self._running, self.position + len(piece))
                    found = buffers.binding.get_outputs()[-1].numpy()  # bound last
                rows.append(found[0].astype(np.float32, copy=False))
        return np.concatenate(rows)

    def _pieces(self, tokens: Sequence[int]) -> list[Sequence[int]]:
        """What attention takes at once, one after the other."""
        return [tokens[at : at + self._gpu.chunk] for at in range(0, len(tokens), self._gpu.chunk)]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All pieces of a feed, or none of them."""
        start = self.position
        try:
            yield
        except BaseException:
            self.position = start
            raise

    def _bind(self, buffers: Buffers, tokens: Sequence[int], *, logits_from: int) -> None:
        given = {
            "input_ids": [tokens],
            "attention_mask": np.ones((1, self.position + len(tokens))),
            "logits_from": [logits_from],
        }
        # on the host, which makes lengths of it; kept, as not every version's binding keeps what it was given
        self._given = {
            name: ort.OrtValue.ortvalue_from_numpy(np.array(values, np.int64)) for name, values in given.items()
        }
        for name, value in self._given.items():
            buffers.binding.bind_ortvalue_input(name, value)
