"""Runs over slots of a pool with everything in place: each can be captured once, and replayed.

Attention takes each row's length from the sum of its attention mask and the time from the mask's length: so the first
column holds the number of tokens, all others zeros, and there are several lengths, each with a capture of its own; not
many, because CUDA's attention plans each new one for a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from embedllm.backends.gpu.device_logits import LogitsEngine
from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.gpu.on_device import not_waiting
from embedllm.backends.ort.runtime import ort
from embedllm.package.graph_variants import HIDDEN_FROM, LAST_HIDDEN_STATE

if TYPE_CHECKING:
    from embedllm.backends.gpu.rotary_inputs import RotaryInputs
    from embedllm.package.architecture.decoder import Decoder

SHORTEST = 1024  # tokens, of a mask; the next ones are 1.5 times that, twice that, and so on
_ITEM = 8  # bytes of a token id, of a position, and of a number in the mask


class Shape(NamedTuple):
    """What tells one step from another."""

    slot: int  # of the first row
    rows: int
    tokens: int  # that each row appends
    length: int  # of the mask
    side: int  # of the states that it reads


class Outputs(NamedTuple):
    """Where a step writes, by row and token."""

    logits: int
    hidden: int  # hidden states, of a graph that gives them


@dataclass(slots=True)
class Step:
    """Some tokens for each of some rows, of which the inputs are to be given yet."""

    shape: Shape
    inputs: DeviceBlock  # masks [rows, length], then tokens and positions [rows, tokens]
    binding: ort.IOBinding
    options: ort.RunOptions
    options_async: ort.RunOptions  # the same, without waiting for the device
    graph_id: int
    has_run: bool = False

    @property
    def mask_pitch(self) -> int:
        """Bytes from a row's mask to the next."""
        return self.shape.length * _ITEM

    @property
    def tokens(self) -> int:
        """Where the tokens are."""
        return self.inputs.address + self.shape.rows * self.mask_pitch

    @property
    def positions(self) -> int:
        """Where the rows of the rotary tables are, where a graph has them as an input."""
        return self.tokens + self.shape.rows * self.shape.tokens * _ITEM


class StepEngine(LogitsEngine, Protocol):
    """What steps need of an engine."""

    gives_hidden: bool  # its graph has hidden states as an output

    @property
    def session(self) -> ort.InferenceSession: ...


# a binding whose past and present are that many slots, from the first on, and of states the two sides
Bind: TypeAlias = Callable[[int, int, int], ort.IOBinding]


class Steps:
    """Those of one pool."""

    def __init__(
        self, engine: StepEngine, bind: Bind, rotary: RotaryInputs, *, capacity: int, decoder: Decoder
    ) -> None:
        """bind: what a run of a slot, a number of rows and a side of the states has for its KV."""
        self._engine, self._bind, self._rotary = engine, bind, rotary
        self._capacity, self._decoder = capacity, decoder
        self._last, self._all = (ort.OrtValue.ortvalue_from_numpy(np.array([at], np.int64)) for at in (-1, 0))
        self._steps: dict[Shape, Step] = {}

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps.values())

    def get(self, slot: int, *, rows: int, tokens: int, end: int, side: int, outputs: Outputs) -> Step:
        """One after which no row holds more than `end` tokens."""
        shape = Shape(slot, rows, tokens, self.length(end), side)
        if shape not in self._steps:
            self._steps[shape] = self._make_step(shape, outputs)
        return self._steps[shape]

    def length(self, end: int) -> int:
        """Of the mask of steps after which at most that many tokens are held."""
        length = SHORTEST
        while length < end:
            length += length // (2 if length.bit_count() == 1 else 3)  # 2, 3, 4, 6, 8, 12 ...
        return min(length, self._capacity)

    def forget(self) -> None:
        """Forgets what was captured, which would stay as long as the engine, at addresses of before."""
        for step in self._steps.values():
            self._engine.session.release_captured_graph(step.graph_id)
        self._steps.clear()

    def _make_step(self, shape: Shape, outputs: Outputs) -> Step:
        engine = self._engine
        slot, rows, tokens, length, side = shape
        size = rows * (length + 2 * tokens) * _ITEM
        inputs, binding = DeviceBlock(engine.memory, size), self._bind(slot, rows, side)
        engine.memory.zero(inputs.address, size)
        graph_id = next(engine.graph_ids)
        options, asynchronous = engine.replaying(graph_id), not_waiting(engine.replaying(graph_id))
        step = Step(shape, inputs, binding, options, asynchronous, graph_id)
        binding.bind_input("attention_mask", *engine.where, np.int64, (rows, length), inputs.address)
        binding.bind_input("input_ids", *engine.where, np.int64, (rows, tokens), step.tokens)
        first = self._last if tokens == 1 else self._all
        binding.bind_ortvalue_input("logits_from", first)
        logits_shape = (rows, tokens, self._decoder.vocabulary)
        binding.bind_output("logits", *engine.where, engine.dtype, logits_shape, outputs.logits)
        if engine.gives_hidden:
            binding.bind_ortvalue_input(HIDDEN_FROM, first)
            hidden_shape = (rows, tokens, self._decoder.hidden)
            binding.bind_output(LAST_HIDDEN_STATE, *engine.where, engine.dtype, hidden_shape, outputs.hidden)
        self._rotary.bind_steps(binding, length, step.positions, (rows, tokens))
        return step
