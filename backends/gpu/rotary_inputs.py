"""Rotary tables and positions as inputs of a graph whose model's images move positions (M-RoPE), on engines with slots.

A prompt behind an image, or with one, has tables of its own, whose rows are the places of its sequence. Steps read the
tables that all have: text behind images stands at earlier rows of these, which positions say, so rows of one captured
step have their own. Graphs have no positions as an input where attention would ignore them (GraphVariant): there a
sequence with images steps alone, as a prompt of one token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.gpu.images import RunsOnDevice, takes_tables
from embedllm.package.graph_variants import POSITION_IDS
from embedllm.package.rope import tables
from embedllm.package.tensors import ROPE_TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedllm.backends.mrope import ImagePlaces
    from embedllm.backends.ort.runtime import ort
    from embedllm.package.package import Package
    from embedllm.types import F32

_ITEM = 8  # bytes of a position


class RotaryEngine(RunsOnDevice, Protocol):
    """What the inputs need of an engine."""

    package: Package

    @property
    def session(self) -> ort.InferenceSession: ...


class RotaryInputs:
    """Those of the sequences of at most `capacity` tokens; of other graphs it binds nothing."""

    def __init__(self, engine: RotaryEngine, capacity: int) -> None:
        rope = engine.package.decoder.rope
        self._engine, self._row_bytes = engine, 4 * (rope.rotary_dim // 2)
        self.has_tables = rope.mrope is not None and takes_tables(engine.session)
        self.has_positions = POSITION_IDS in {one.name for one in engine.session.get_inputs()}
        if self.has_tables:
            self._tables = self._written(tables(rope, capacity), 0)
            self._positions = DeviceBlock(engine.memory, _ITEM * capacity)  # of a prompt

    def bind_steps(self, binding: ort.IOBinding, rows: int, positions: int, shape: tuple[int, int]) -> None:
        """Binds what captured steps read. rows: of the tables; positions: where those of the tokens [B, T] are."""
        if self.has_tables:
            self._bind(binding, self._tables, rows)
        if self.has_positions:
            binding.bind_input(POSITION_IDS, *self._engine.where, np.int64, shape, positions)

    def bind_prompt(
        self, binding: ort.IOBinding, start: int, stop: int, places: ImagePlaces | None, *, sequences: int = 1
    ) -> DeviceBlock | None:
        """Binds what tokens from `start` to before `stop` read; the memory of tables of their own, kept until then."""
        if not self.has_tables:
            return None
        if self.has_positions:
            positions = np.tile(np.arange(start, stop), (sequences, 1))
            block = self._positions
            if positions.nbytes > block.size:
                block = self._positions = DeviceBlock(self._engine.memory, positions.nbytes)
            self._engine.memory.write(block.address, positions)
            binding.bind_input(POSITION_IDS, *self._engine.where, np.int64, positions.shape, block.address)
        own = self._written(places.rope_rows(start, stop), start) if places else None
        self._bind(binding, own or self._tables, stop)
        return own

    def _written(self, rows: Sequence[F32], start: int) -> DeviceBlock:
        """Both tables, one behind the other, whose first rows are not written: nobody reads them."""
        size = self._row_bytes * (start + len(rows[0]))
        block = DeviceBlock(self._engine.memory, 2 * size)
        for at, values in enumerate(rows):
            place = block.address + at * size + start * self._row_bytes
            self._engine.memory.write(place, np.ascontiguousarray(values, np.float32))
        return block

    def _bind(self, binding: ort.IOBinding, block: DeviceBlock, rows: int) -> None:
        shape = (rows, self._row_bytes // 4)
        for at, name in enumerate(ROPE_TABLES):
            address = block.address + at * block.size // 2
            binding.bind_input(name, *self._engine.where, np.float32, shape, address)
