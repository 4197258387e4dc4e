"""The states of recurrent sequences, beside their KV in slots on a device: a run reads one side and writes the other.

So a run that fails, is stopped or was not wanted has left no trace in what the next one reads, and a captured step may
run twice. The states of a layer are one array [slots, ...] a side, so a step of several rows reads them as a batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.gpu.device_memory import DeviceBlock, DeviceMemory, Region
    from embedllm.backends.ort.runtime import ort

SIDES = 2
_PREFIX = re.compile(r"past_(?=(?:conv|recurrent)\.)")  # embedllm/package/recurrent_state.py has the names
_DTYPES: Mapping[str, type[np.floating]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class StateEngine(Protocol):
    """What it needs of an engine."""

    memory: DeviceMemory
    where: tuple[str, int]  # the device in ONNX Runtime's words: its type and index

    @property
    def session(self) -> ort.InferenceSession: ...


class State(NamedTuple):
    """One of a sequence, as a graph has it."""

    dtype: type[np.floating]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def states_of(session: ort.InferenceSession) -> dict[str, State]:
    """Those that a graph takes, by name."""
    return {
        _PREFIX.sub("", one.name): State(_DTYPES[one.type], tuple(one.shape[1:]))
        for one in session.get_inputs()
        if _PREFIX.match(one.name)
    }


def state_bytes(session: ort.InferenceSession) -> int:
    """Of one sequence, once."""
    return sum(state.bytes for state in states_of(session).values())


class DeviceStates(Mapping[str, "NDArray[np.floating]"]):
    """States of a sequence that stay on the device; an array that is asked for is copied to the host."""

    def __init__(self, memory: DeviceMemory, states: Mapping[str, State], block: DeviceBlock) -> None:
        """block: where they lie, one behind the other."""
        self.block = block
        self._memory = memory
        self._states = states

    @property
    def nbytes(self) -> int:
        return self.block.size

    def __getitem__(self, name: str) -> NDArray[np.floating]:
        address = self.block.address
        for each, state in self._states.items():
            if each == name:
                array = np.empty(state.shape, state.dtype)
                self._memory.read(address, array)
                return array
            address += state.bytes
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


class StatePool:
    """Of a model that has no states, nothing."""

    def __init__(self, engine: StateEngine, most: int) -> None:
        """most: slots that it can grow to."""
        self._engine, self._memory = engine, engine.memory
        self._states = states_of(engine.session)
        self._sizes = {name: state.bytes for name, state in self._states.items()}
        self._regions: list[dict[str, Region]] = [
            {name: engine.memory.reserve(most * size) for name, size in self._sizes.items()} for _ in range(SIDES)
        ]
        # and the bytes that a slot takes of each
        self.regions = [(side[name], size) for side in self._regions for name, size in self._sizes.items()]

    def after(self, side: int) -> int:
        """Where the states are once a run has read those of that side."""
        return 1 - side if self._states else side

    def bind(self, binding: ort.IOBinding, slot: int, rows: int, side: int) -> None:
        """Has a run read that side of these slots, from that one on, and write the other."""
        engine = self._engine
        for name, (dtype, shape) in self._states.items():
            past, present = (
                (*engine.where, dtype, (rows, *shape), self._address(name, slot, each))
                for each in (side, self.after(side))
            )
            binding.bind_input(f"past_{name}", *past)
            binding.bind_output(f"present_{name}", *present)

    def zero(self, slot: int, side: int) -> None:
        """Makes them those of a sequence of no token."""
        for name, size in self._sizes.items():
            self._memory.zero(self._address(name, slot, side), size)

    def copy(self, slot: int, side: int, source: StatePool, from_slot: int, from_side: int) -> None:
        """Takes those of a slot of this or another pool."""
        for name, size in self._sizes.items():
            place = source._address(name, from_slot, from_side)
            self._memory.copy(self._address(name, slot, side), place, width=size)

    def copied(self, block: DeviceBlock) -> DeviceStates:
        """What was saved to a block, for a slot of any pool of the engine."""
        return DeviceStates(self._memory, self._states, block)

    def write(self, states: Mapping[str, NDArray[np.floating]], slot: int, side: int) -> None:
        """Takes arrays of the host."""
        for name in self._states:
            self._memory.write(self._address(name, slot, side), states[name])

    def save(self, to: int, slot: int, side: int) -> None:
        """Copies them to that many bytes somewhere else on the device, one behind the other."""
        for name, size in self._sizes.items():
            self._memory.copy(to, self._address(name, slot, side), width=size)
            to += size

    def restore(self, source: int, slot: int, side: int) -> None:
        """Takes what was saved."""
        for name, size in self._sizes.items():
            self._memory.copy(self._address(name, slot, side), source, width=size)
            source += size

    def _address(self, name: str, slot: int, side: int) -> int:
        return self._regions[side][name].address + slot * self._sizes[name]
