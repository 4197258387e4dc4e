"""What a session on a device reads and writes, at fixed addresses there.

A step of one token has the same addresses and shapes each time, so that a provider that captures its work can replay
it: its attention mask is longer than what is held, and its ones count the tokens. Attention takes time for the whole
length of the mask, so there are several, each with a capture of its own; not many, because CUDA's attention plans each
new length for a tenth of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.gpu.device_logits import Head
from embedllm.backends.gpu.session import DeviceEngine, bound_to, empty_kv
from embedllm.backends.ort.runtime import ort

if TYPE_CHECKING:
    from itertools import count

_SHORTEST = 1024  # tokens, of a mask; the next ones are 1.5 times that, twice that, and so on


class CapturingEngine(DeviceEngine["Buffers"], Protocol):
    """An engine that replays what it captured."""

    where: tuple[str, int]  # the device in ONNX Runtime's words: its type and index
    graph_ids: count[int]
    heads: dict[str, ort.InferenceSession]
    head_sizes: dict[str, int]

    def replaying(self, graph_id: int | None) -> ort.RunOptions:
        """Options to run what is captured under that number, or is captured so now; None: nothing is."""
        ...


@dataclass(slots=True)
class Step:
    """One token, everything in place: can be captured once, and replayed."""

    given: ort.OrtValue  # [length + 1]: the mask, then the token; together, because each write waits for the device
    binding: ort.IOBinding
    options: ort.RunOptions
    options_ahead: ort.RunOptions  # the same, without waiting for the device
    graph_id: int
    has_run: bool = False


class Buffers:
    """What a step reads and writes, at fixed addresses on the device."""

    def __init__(self, engine: CapturingEngine, capacity: int) -> None:
        self.capacity = capacity
        self._engine = engine
        self._steps: dict[int, Step] = {}
        self.kv = empty_kv(engine, capacity)
        self.logits = engine.place(np.zeros((1, 1, engine.package.decoder.vocabulary), engine.dtype))
        self.last = ort.OrtValue.ortvalue_from_numpy(np.array([-1], np.int64))
        self.several = bound_to(self.kv, engine.session)  # any number of tokens
        self._heads_id = next(engine.graph_ids)
        self.heads = {
            name: Head(
                session,
                self.logits,
                size=engine.head_sizes[name],
                options=engine.replaying(self._heads_id),
                place=engine.place,
                read=engine.read,
            )
            for name, session in engine.heads.items()
        }

    def step(self, end: int) -> Step:
        """What appends one token, after which that many are held."""
        length = _SHORTEST
        while length < end:
            length += length // (2 if length.bit_count() == 1 else 3)  # 2, 3, 4, 6, 8, 12 ...
        length = min(length, self.capacity)
        if length not in self._steps:
            binding, given = bound_to(self.kv, self._engine.session), self._engine.place(np.zeros(length + 1, np.int64))
            where, start = self._engine.where, given.data_ptr()
            binding.bind_input("attention_mask", *where, np.int64, (1, length), start)
            binding.bind_input("input_ids", *where, np.int64, (1, 1), start + 8 * length)
            binding.bind_ortvalue_input("logits_from", self.last)
            binding.bind_ortvalue_output("logits", self.logits)
            graph_id = next(self._engine.graph_ids)
            options, ahead = self._engine.replaying(graph_id), self._engine.replaying(graph_id)
            ahead.add_run_config_entry("disable_synchronize_execution_providers", "1")
            self._steps[length] = Step(given, binding, options, ahead, graph_id)
        return self._steps[length]

    def give(self, token: int, end: int) -> Step:
        """The step that appends this token, ready to run."""
        step = self.step(end)
        given = np.zeros(step.given.shape(), np.int64)
        given[:end], given[-1] = 1, token
        self._engine.write(step.given, given)
        return step

    def release(self) -> None:
        """Forgets what was captured, which would stay as long as the engine."""
        for step in self._steps.values():
            self._engine.session.release_captured_graph(step.graph_id)
        for session in self._engine.heads.values():
            session.release_captured_graph(self._heads_id)
        self._steps.clear()
