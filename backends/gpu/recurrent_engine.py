"""A recurrent model on an engine of slots: sequences step together, captured, each with its states beside its KV.

Wraps the sessions of io_binding_engine.py, which hold the states of their newest token only
(backends/sessions/recurrent_session.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.gpu.io_binding_session import ResidentSession
from embedllm.backends.gpu.state_pool import DeviceStates, state_bytes
from embedllm.backends.ort.runtime import device_errors
from embedllm.backends.sessions.recurrent_session import StatefulSession, step_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedllm.backends.base import BatchRow, RecurrentStates, Session
    from embedllm.backends.gpu.io_binding_engine import ResidentEngine
    from embedllm.package.lora.adapter import Adapter
    from embedllm.types import Logits


class SlotStates:
    """States that a slot has had: they lie on that side of it until a run is about to write there, then in a block."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.block: DeviceBlock | None = None


class RecurrentSlot(ResidentSession):
    """A session whose rewind leaves its states as they are, but for one to the beginning."""

    def __init__(self, engine: ResidentEngine, capacity: int) -> None:
        self._memory, self._lock, self._device = engine.memory, engine.lock, engine.device
        self._bytes = state_bytes(engine.session)
        self._in_place: list[ref[SlotStates]] = []  # those that lie in the slot yet
        super().__init__(engine, capacity)

    @property
    def can_step(self) -> bool:
        """Not where that writes over states of before."""
        return super().can_step and not any(reference() for reference in self._in_place)

    def feed(self, tokens: Sequence[int]) -> Logits:
        if self._engine.several.is_used and self._engine.several.width(self, tokens):  # behind drafts that were wrong
            return self.feed_rows(tokens)[-1]
        return super().feed(tokens)

    def states(self) -> SlotStates:
        """Those of now. They are copied once a run writes over them."""
        states = SlotStates(self.side)
        self._in_place.append(ref(states))
        return states

    def set_states(self, states: SlotStates) -> None:
        if states.block is None:
            self.side = states.side
        else:
            with self._lock, device_errors(self._device):
                self.pool.states.restore(states.block.address, self.pool.table.slot(self), self.side)
        self.version += 1

    def copied(self, states: SlotStates) -> DeviceStates:
        pool, block = self.pool, states.block
        with self._lock, device_errors(self._device):
            if block is None:
                block = DeviceBlock(self._memory, self._bytes)
                pool.states.save(block.address, pool.table.slot(self), states.side)
            return pool.states.copied(block)

    def take_states(self, states: RecurrentStates) -> None:
        self._save_those_on(self.side)  # they are written over
        slot = self.pool.table.slot(self)
        with self._lock, device_errors(self._device):
            if isinstance(states, DeviceStates):
                self.pool.states.restore(states.block.address, slot, self.side)
            else:
                self.pool.states.write(states, slot, self.side)
        self.version += 1

    def save_states(self) -> None:
        self._save_those_on(0, 1)

    def adapt(self, adapter: Adapter | None) -> None:
        if adapter is not None:
            raise ValueError("this device takes no adapters.")

    def _reserve(self, tokens: int) -> None:
        self._save_those_on(1 - self.side)  # a run writes there
        super()._reserve(tokens)

    def _save_those_on(self, *sides: int) -> None:
        """Copies the states of before that lie on these sides yet."""
        slot_states = [states for each in self._in_place if (states := each()) is not None]
        for states in slot_states:
            if states.side in sides:
                with self._lock, device_errors(self._device):
                    states.block = DeviceBlock(self._memory, self._bytes)
                    self.pool.states.save(states.block.address, self.pool.table.slot(self), states.side)
        self._in_place = [ref(states) for states in slot_states if states.block is None]


Stateful: TypeAlias = StatefulSession[SlotStates]


class RecurrentEngine:
    """An engine whose runs take the sessions that it opens. It reads prompts one sequence at a time."""

    def __init__(self, slots: ResidentEngine) -> None:
        self.slots = slots
        self.device, self.package = slots.device, slots.package
        self.context, self.remedy, self.chunk = slots.context, slots.remedy, slots.chunk
        self.max_batch, self.mixes_lengths = slots.max_batch, slots.mixes_lengths
        self.prompt_budget = slots.prompt_budget
        self.images, self.images_unsupported = slots.images, slots.images_unsupported

    def open(self, capacity: int = 0) -> Stateful:
        with self.slots.lock, device_errors(self.device):
            return StatefulSession(self, RecurrentSlot(self.slots, capacity))

    def close(self) -> None:
        self.slots.close()

    def warm_up(self) -> None:
        self.slots.warm_up()

    def run_batch(self, rows: Sequence[BatchRow]) -> Sequence[Logits]:
        """One token for each of 1 to max_batch sessions.

        In one run but for those that a rewind has put behind, and those whose token is of an image.
        """
        return step_together(self, rows, _steps_beside, self.slots.run_batch)


def _steps_beside(session: Session, token: int) -> bool:
    return isinstance(session, RecurrentSlot) and not session.steps_alone(token)
