"""KV of sequences of one capacity, side by side on the device, and the steps over them.

Keys and values of a layer are one array [slots, kv heads, capacity, D], so a step of B rows reads slots 0 to B as a
batch without a copy. It has the same addresses and shapes each time, so that a provider that captures its work can
replay it (kv_steps.py). A recurrent model's states lie beside (state_pool.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.gpu.kv_slots import SlotTable, padded_width, runs
from embedllm.backends.gpu.kv_steps import Outputs, Step, StepEngine, Steps
from embedllm.backends.gpu.rotary_inputs import RotaryInputs
from embedllm.backends.gpu.state_pool import SIDES, StatePool, state_bytes
from embedllm.backends.ort.runtime import ort
from embedllm.errors import DeviceError
from embedllm.package.package import Package

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.gpu.device_memory import Region

_ITEM = 8  # bytes of a token id, and of a position
_SPARE = 4  # slots whose memory is kept though nothing is in them


class PoolEngine(StepEngine, Protocol):
    """What a pool needs of its engine."""

    package: Package
    max_batch: int


class Holder(Protocol):
    """A session."""

    position: int  # tokens held
    side: int  # of the states, where those lie that belong to them

    @property
    def rope_position(self) -> int:
        """Where the next one stands: its row of the rotary tables."""
        ...

    def save_states(self) -> None:
        """Copies states of before that lie in its slot yet: its newest ones are about to be moved."""
        ...


class KvPool:
    """The KV of sequences of at most `capacity` tokens."""

    def __init__(self, engine: PoolEngine, capacity: int) -> None:
        self.capacity = capacity
        self.table: SlotTable[Holder] = SlotTable()
        self._engine = engine
        self._memory = memory = engine.memory
        self._last = ort.OrtValue.ortvalue_from_numpy(np.array([-1], np.int64))
        decoder, item = engine.package.decoder, np.dtype(engine.dtype).itemsize
        self.shapes = {
            f"{at}.{part}": (attention.kv_heads, capacity, attention.head_dim)
            for at, attention in enumerate(decoder.kv_attentions)
            for part in ("key", "value")
        }
        self._slot_bytes = {name: int(np.prod(shape)) * item for name, shape in self.shapes.items()}
        self._head_bytes = {name: shape[1] * shape[2] * item for name, shape in self.shapes.items()}
        self._token_bytes = {name: shape[2] * item for name, shape in self.shapes.items()}
        self._whole_slot = sum(self._slot_bytes.values()) + SIDES * state_bytes(engine.session)
        most = max(engine.max_batch, memory.total_bytes() // max(self._whole_slot, 1)) + 1
        self._regions: dict[str, Region] = {
            name: memory.reserve(most * size) for name, size in self._slot_bytes.items()
        }
        self.states = StatePool(engine, most)
        self._sized = [(region, self._slot_bytes[name]) for name, region in self._regions.items()] + self.states.regions
        self.rotary = RotaryInputs(engine, capacity)
        self.row_bytes = decoder.vocabulary * item
        self._logits = DeviceBlock(memory, engine.max_batch * self.row_bytes)
        self._hidden_bytes = decoder.hidden * item if engine.gives_hidden else 0
        self._hidden = DeviceBlock(memory, max(1, engine.max_batch * self._hidden_bytes))
        self._mapped = 0  # slots that have memory
        self._outputs = Outputs(self._logits.address, self._hidden.address)
        self.steps = Steps(engine, self._bound, self.rotary, capacity=capacity, decoder=decoder)
        self._several: dict[tuple[int, int], ort.IOBinding] = {}

    def take(self, owner: Holder) -> None:
        """Gives it a slot. Raises DeviceError when memory is short."""
        slot = self.table.take(owner)
        try:
            self._map(slot + 1)
            self.states.zero(slot, owner.side)
        except BaseException:
            self.table.release(owner)
            raise

    def release(self, owner: Holder) -> None:
        self.table.release(owner)
        slots = self._mapped
        while slots > _SPARE and len(self.table) * 4 <= slots:
            slots //= 2
        if slots < self._mapped:
            self._several = {place: binding for place, binding in self._several.items() if place[0] < slots}
            self._resize(slots)

    def address(self, name: str, slot: int, token: int = 0) -> int:
        """Where the key or value of a token of the first head lies."""
        return self._regions[name].address + slot * self._slot_bytes[name] + token * self._token_bytes[name]

    def pitch(self, name: str) -> int:
        """Bytes from a head to the next."""
        return self._head_bytes[name]

    def logits(self, owner: Holder) -> int:
        """Where a step writes its row."""
        return self._logits.address + self.table.slot(owner) * self.row_bytes

    def hidden(self, owner: Holder) -> int:
        """Where a step writes its hidden state."""
        return self._hidden.address + self.table.slot(owner) * self._hidden_bytes

    def copy(self, source: KvPool, from_slot: int, to_slot: int, owner: Holder) -> None:
        """Takes what an owner holds in a slot of this or another pool."""
        tokens = owner.position
        self.states.copy(to_slot, owner.side, source.states, from_slot, owner.side)
        for name, (heads, _, _) in self.shapes.items():
            if tokens:
                self._memory.copy(
                    self.address(name, to_slot), source.address(name, from_slot),
                    width=tokens * self._token_bytes[name], rows=heads,
                    to_pitch=self.pitch(name), pitch=source.pitch(name),
                )  # fmt: skip

    def write(self, owner: Holder, name: str, start: int, values: NDArray[np.generic]) -> None:
        """Puts [kv heads, T, D] of the host in the place of the tokens from `start` on."""
        place = self.address(name, self.table.slot(owner), start)
        self._memory.write(place, values, to_pitch=self.pitch(name))

    def several(self, owner: Holder) -> ort.IOBinding:
        """A binding for any number of tokens of one sequence; inputs and logits are to be bound yet."""
        slot = self.table.slot(owner)
        if (slot, owner.side) not in self._several:
            self._several[slot, owner.side] = self._bound(slot, 1, owner.side)
        return self._several[slot, owner.side]

    def with_images(self, owner: Holder, session: ort.InferenceSession) -> ort.IOBinding:
        """As several(), for one run with inputs of images, which other runs have to do without; of that graph."""
        return self._bound(self.table.slot(owner), 1, owner.side, session)

    def beside(self, slot: int, rows: int) -> ort.IOBinding:
        """A binding for any number of tokens of each of these slots, from that one on; its logits are of no use.

        Not for a model with states, in which what fills rows up to one length would leave its trace.
        """
        binding = self._bound(slot, rows, 0)
        binding.bind_ortvalue_input("logits_from", self._last)
        binding.bind_output("logits", *self._engine.where)
        return binding

    def prepare(self, rows: Sequence[Holder]) -> Step:
        """The step that appends one token to each of these, which is to be given yet, each at its slot.

        What does not step is moved where it is not in the way. Raises DeviceError.
        """
        width = padded_width(len(rows), self._engine.max_batch)
        if width > self._mapped and self._has_room(width):
            self._map(width)
        width = min(width, max(self._mapped, len(rows)))
        if len(self.table) > len(rows) or any(self.table.slot(owner) >= width for owner in rows):
            for owner in filter(None, self.table.owners(len(self.table))):  # some are moved
                owner.save_states()
        moves = self.table.arrange(rows, width, may_wait=self._may_wait)
        try:
            self._map(max((move.to + 1 for move in moves), default=0))
        except BaseException:
            self.table.undo(moves)
            raise
        for move in moves:
            owner = self.table.owners(move.to + 1)[move.to]
            assert owner is not None  # it was moved there
            self.copy(self, move.source, move.to, owner)
        side = rows[0].side
        for owner in rows:
            if owner.side != side:
                owner.save_states()
                slot = self.table.slot(owner)
                self.states.copy(slot, side, self.states, slot, owner.side)
                owner.side = side
        owners = self.table.owners(width)
        counts = np.array([1 if owner is None else owner.position + 1 for owner in owners], np.int64)
        step = self.steps.get(0, rows=width, tokens=1, end=int(counts.max()), side=side, outputs=self._outputs)
        self._memory.write(step.inputs.address, counts[:, None], to_pitch=step.mask_pitch)
        if self.rotary.has_positions:
            positions = [0 if owner is None else owner.rope_position for owner in owners]
            self._memory.write(step.positions, np.array(positions, np.int64))
        return step

    def give(self, step: Step, rows: Sequence[Holder], tokens: Sequence[int]) -> None:
        """The tokens of a step that was prepared for these rows."""
        token_ids = np.zeros(step.shape.rows, np.int64)
        for owner, token in zip(rows, tokens, strict=True):
            token_ids[self.table.slot(owner)] = token
        self._memory.write(step.tokens, token_ids)

    def give_later(self, step: Step, rows: Sequence[Holder], source: int) -> None:
        """The tokens of a step that was prepared for these rows: what will lie on the device there, int64 by row."""
        slots = [self.table.slot(owner) for owner in rows]
        for start, stop in runs(slots):
            to = step.tokens + slots[start] * _ITEM
            self._memory.copy(to, source + start * _ITEM, width=(stop - start) * _ITEM)

    def prepare_several(self, owner: Holder, tokens: Sequence[int], width: int, outputs: Outputs) -> Step:
        """The step that appends `width` tokens to one, these and others behind them that are to be forgotten.

        It waits for room for all of them.
        """
        slot, end = self.table.slot(owner), owner.position + width
        step = self.steps.get(slot, rows=1, tokens=width, end=end, side=owner.side, outputs=outputs)
        token_ids = np.zeros(width, np.int64)
        token_ids[: len(tokens)] = tokens
        self._memory.write(step.inputs.address, np.array([end], np.int64))
        self._memory.write(step.tokens, token_ids)
        if self.rotary.has_positions:
            self._memory.write(step.positions, np.arange(owner.rope_position, owner.rope_position + width))
        return step

    def close(self) -> None:
        self._forget()
        for region, _ in self._sized:
            region.close()

    def _may_wait(self, owner: Holder) -> bool:
        """Whether a step may go over one that does not step: it writes a token behind what that one holds.

        And states: those of the other side, which are what the one that waits goes on from once the next step is over.
        """
        return not self.states.regions and owner.position < self.capacity

    def _bound(self, slot: int, rows: int, side: int, session: ort.InferenceSession | None = None) -> ort.IOBinding:
        """A binding whose past and present are the same slots, from that one on, and of states the two sides.

        session: None: the engine's.
        """
        engine = self._engine
        binding = (session or engine.session).io_binding()
        for name, shape in self.shapes.items():
            place = (*engine.where, engine.dtype, (rows, *shape), self.address(name, slot))
            binding.bind_input(f"past_key_values.{name}", *place)
            binding.bind_output(f"present.{name}", *place)
        self.states.bind(binding, slot, rows, side)
        return binding

    def _map(self, slots: int) -> None:
        """Gives memory to that many slots: to twice as many as before, if there is enough. Raises DeviceError."""
        if slots > self._mapped:
            more = min(max(slots, 2 * self._mapped), max(slots, self._engine.max_batch))
            self._resize(more if self._has_room(more) else slots)

    def _has_room(self, slots: int) -> bool:
        """Whether that many leave half of the free memory to others."""
        return 2 * (slots - self._mapped) * self._whole_slot <= self._memory.free_bytes()

    def _resize(self, slots: int) -> None:
        """New memory is zeros: attention multiplies what it does not see by nothing, and NaN times nothing is NaN."""
        before, has_moved = self._mapped, False
        try:
            for region, size in self._sized:
                has_moved |= region.resize(slots * size)
        except DeviceError:
            for region, size in self._sized:
                region.resize(before * size)
            if has_moved:
                self._forget()
            raise
        for region, size in self._sized:
            if slots > before:
                self._memory.zero(region.address + before * size, (slots - before) * size)
        self._mapped = slots
        if has_moved:
            self._forget()

    def _forget(self) -> None:
        """Forgets what is bound and captured at addresses of before."""
        self.steps.forget()
        self._several.clear()
