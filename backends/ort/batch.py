"""Steps of several sequences as one run of ONNX Runtime, which reads the weights once for all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.ort.binding import bind_adapter, bind_kv
from embedllm.backends.ort.runtime import first_line, ort, run_options
from embedllm.backends.ort.shared_states import SharedStates
from embedllm.backends.sessions.shared_kv import SharedKv
from embedllm.errors import DeviceError
from embedllm.package.graph_variants import LAST_HIDDEN_STATE

if TYPE_CHECKING:
    from embedllm.backends.ort.session import OrtSession
    from embedllm.backends.sessions.shared_kv import Member
    from embedllm.backends.system.host_memory import HugePages
    from embedllm.package.lora.adapter import Adapter
    from embedllm.package.package import Package
    from embedllm.types import F32

MAX_BATCH = 16  # sequences in one run


class BatchHost(Protocol):
    """What is needed of an engine."""

    package: Package
    adapts: bool
    hidden_rows: int
    pages: HugePages

    @property
    def session(self) -> ort.InferenceSession: ...

    @property
    def dtype(self) -> np.dtype[np.floating]: ...


class Batch:
    """The sessions that step together, all with one adapter or with none.

    What is bound stays so from run to run, as long as the same sessions step and their buffers have room.
    """

    def __init__(self, engine: BatchHost, adapter: Adapter | None) -> None:
        self.adapter = adapter
        self.shared = SharedKv(slots=MAX_BATCH, context=engine.package.context, release=self._release)
        self._states = SharedStates(engine.package.architecture, most_slots=MAX_BATCH)
        self._engine = engine
        self._bound: _Bound | None = None
        self._options = run_options()

    def step(self, sessions: Sequence[OrtSession], tokens: Sequence[int]) -> list[F32]:
        """Appends a token to each; the logits after it, [V], which stay until that session is fed again.

        Raises DeviceError and MemoryError, and then has appended nothing.
        """
        slots = self.shared.join(sessions)
        if self._bound is None or self._bound.slots != slots:
            self._unbind()  # before the next one takes memory
            self._bound = _Bound(self._engine, self.adapter, self.shared, slots)
        # those between take part with any token: what it writes past the end of their sequences is written again
        next_tokens: dict[Member, int] = dict(zip(sessions, tokens, strict=True))
        members = self.shared.members[slots.start : slots.stop]
        positions = [member.position for member in members]
        logits = self._bound.prepare([next_tokens.get(member, 0) for member in members], positions, next_tokens.keys())
        stepping = {session.state_buffers: slots.start + members.index(session) for session in sessions}
        self._states.bind(self._bound.binding, stepping, slots)
        try:
            with self._engine.pages.beside(1):
                self._engine.session.run_with_iobinding(self._bound.binding, self._options)
        except Exception as error:
            raise DeviceError(f"ONNX Runtime failed at {positions}: {first_line(error)}") from error
        self._states.end_run(stepping)
        rows = [logits[members.index(session), 0] for session in sessions]
        hidden = self._bound.hidden
        for session in sessions:
            session.position += 1
            if session.hidden is not None:
                session.hidden.put(session.position, hidden[members.index(session)])
        self.shared.end_run(next_tokens.keys(), slots)
        return [row.astype(np.float32, copy=False) for row in rows]

    def _unbind(self) -> None:
        self._bound = None

    def _release(self) -> None:
        """Before buffers of KV go: with the last session, or for larger ones."""
        self._unbind()
        self._states.free()


class _Bound:
    """The inputs and outputs of the runs over some slots."""

    def __init__(self, engine: BatchHost, adapter: Adapter | None, shared: SharedKv, slots: range) -> None:
        self.binding = engine.session.io_binding()
        self.slots = slots
        self._tokens = np.zeros((len(slots), 1), np.int64)
        self._mask = np.zeros((len(slots), shared.capacity), np.int64)  # longer than what is held: a shape that stays
        self._ends = [0] * len(slots)  # of the ones in it
        self._last = np.array([-1], np.int64)
        self._logits = np.empty((len(slots), 1, engine.package.decoder.vocabulary), engine.dtype)
        self._read_by: set[Member] = set()  # whose logits lie there
        # the values of all that is bound are of arrays that are kept here or by the sessions: some versions of the
        # binding do not hold them (1.24 to 1.27)
        inputs = {"input_ids": self._tokens, "attention_mask": self._mask, "logits_from": self._last}
        for name, array in inputs.items():
            self.binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        bind_kv(self.binding, {name: array[slots.start : slots.stop] for name, array in shared.kv.items()})
        if engine.adapts:
            bind_adapter(self.binding, engine.package.decoder, adapter)
        self.binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(self._logits))
        self.hidden = np.empty((len(slots), 1, engine.package.decoder.hidden), np.float32)  # where they are given
        if engine.hidden_rows:
            self.binding.bind_ortvalue_output(LAST_HIDDEN_STATE, ort.OrtValue.ortvalue_from_numpy(self.hidden))

    def prepare(self, tokens: Sequence[int], positions: Sequence[int], stepping: Collection[Member]) -> np.ndarray:
        """Sets the inputs of a run, by slot; where its logits will lie, [B, 1, V]."""
        self._tokens[:, 0] = tokens
        for row, position in enumerate(positions):
            if self._ends[row] == position:  # as after a step
                self._mask[row, position] = 1
            elif self._ends[row] != position + 1:
                self._mask[row, : position + 1] = 1
                self._mask[row, position + 1 :] = 0
            self._ends[row] = position + 1
        if not self._read_by.issubset(stepping):  # those of a session that is not fed now stay where they are
            self._logits = np.empty_like(self._logits)
            self.binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(self._logits))
        self._read_by = set(stepping)
        return self._logits
