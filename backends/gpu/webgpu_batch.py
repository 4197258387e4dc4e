"""Steps of several sequences together on WebGPU, captured: each has a row of the buffers of a batch.

A sequence has buffers of its own too, for prompts and for steps alone. Its KV and states are copied into a row where it
first steps with others. What is new there is copied back where it waits while others step, is fed something else or
gives KV away. So nothing is copied for as long as the same sequences step.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np

from embedllm.backends.gpu.images import is_image
from embedllm.backends.gpu.unbatched_session import rounded_capacity
from embedllm.backends.gpu.webgpu_batch_limits import WEBGPU_BATCHES
from embedllm.backends.gpu.webgpu_graph import KEPT
from embedllm.backends.gpu.webgpu_pace import Pace
from embedllm.backends.gpu.webgpu_states import PLACES_OF_BATCH, RowCopier
from embedllm.backends.gpu.webgpu_steps import CapturedSession, Slot, StepBuffers, best_of
from embedllm.backends.ort.runtime import device_errors, first_line
from embedllm.backends.sessions.topk_logits import Best, ListedRow
from embedllm.package.recurrent_state import state_bytes, state_shapes
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.backends.base import BatchRow, Session
    from embedllm.backends.gpu.webgpu_guesses import GuessingGpu
    from embedllm.backends.ort.runtime import ort
    from embedllm.types import Logits

_log = logging.getLogger("embedllm")
FEW = 3  # rows of which products take the kernel for steps; of more that for prompts (docs/webgpu.md#batches)
WIDTHS = (2, FEW, 8, 16)  # rows of batches, KEPT at most
_TOGETHER, _IN_TURNS, _NARROW = "together", "in turns", f"in batches of {FEW}"
_WAYS = {  # of stepping up to that many sequences
    2: (_TOGETHER, _IN_TURNS),
    FEW: (_TOGETHER, _IN_TURNS),
    2 * FEW: (_NARROW, _TOGETHER, _IN_TURNS),
    3 * FEW: (_NARROW, _TOGETHER, _IN_TURNS),
    16: (_TOGETHER, _IN_TURNS),
}
_GROWTH = 2  # room of a new batch, for each token of the longest sequence
_TOLERANCE = 0.5  # standard deviations of logits, as in webgpu.py


class StepLogits:
    """The logits of a batch's step: on the GPU until the next one."""

    def __init__(self, gpu: GuessingGpu, buffers: StepBuffers, fed: dict[CapturedSession, int]) -> None:
        """fed: how often those that may ask for them were fed."""
        self._gpu, self._buffers, self._fed = gpu, buffers, fed
        self._best: list[list[float]] | None = None
        self._rows: np.ndarray | None = None
        self._is_latest = True

    def best(self, index: int, count: int) -> Best:
        best = self._best
        if best is None:
            best = self._best = self._read(self._buffers.best_rows)[KEPT - self._buffers.rows :].tolist()
        return best_of(best[index])

    def whole(self, index: int) -> NumpyLogits:
        if self._rows is None:
            self._rows = self._read(self._buffers.logits)
        return NumpyLogits(self._rows[index, 0].astype(np.float32, copy=False))

    def replace(self, stepping: Sequence[CapturedSession]) -> None:
        """Before the next step, of these sessions: others may ask for their logits yet."""
        if not self._is_latest:  # a step was to replace them before, and failed
            return
        if any(session.fed == fed and session not in stepping for session, fed in self._fed.items()):
            self.best(0, 1)
            self.whole(0)
        self._is_latest = False

    def _read(self, value: ort.OrtValue) -> np.ndarray:
        if not self._is_latest:
            raise ValueError("these logits are gone: their session was fed again, or closed.")
        return self._gpu.read(value)


class Batch:
    """Buffers of some sequences, and their steps."""

    def __init__(self, gpu: GuessingGpu, rows: RowCopier | None, width: int, capacity: int) -> None:
        """rows: of a recurrent model's states."""
        self.width = width
        self._gpu, self._rows = gpu, rows
        self._buffers = StepBuffers(gpu, capacity, width)
        self._place = 0  # of the states
        self._owners: list[CapturedSession | None] = [None] * width
        self._latest: StepLogits | None = None

    @property
    def capacity(self) -> int:
        return self._buffers.capacity

    @property
    def failure(self) -> str:
        """Why its steps are not captured."""
        return self._buffers.failure

    @property
    def is_used(self) -> bool:
        """Whether it holds any sequence's newest tokens."""
        return any(owner is not None and _is_inside(owner, self) for owner in self._owners)

    def step(self, sessions: Sequence[CapturedSession], tokens: Sequence[int]) -> list[Logits]:
        """Appends one token to each of these, which have room for it. Raises DeviceError, and has appended nothing."""
        gpu, buffers = self._gpu, self._buffers
        if self._latest is not None:
            self._latest.replace(sessions)
        with gpu.lock, device_errors(gpu.device):
            for owner in self._owners:
                if owner is not None and _is_inside(owner, self) and owner not in sessions:
                    self.bring_back(owner)
            slots = [self._enter(session, sessions) for session in sessions]
            ids, lengths = np.zeros((self.width, 1), np.int64), np.zeros(self.width, np.int32)
            for row, owner in enumerate(self._owners):
                if owner is not None and owner.slot is not None:  # those that wait get a token behind what is shared
                    owner.slot.shared = min(owner.slot.shared, self.capacity - 1)
                    lengths[row] = owner.position if owner in sessions else owner.slot.shared
            ids[[slot.row for slot in slots], 0] = tokens
            gpu.write(buffers.token, ids)
            gpu.write(buffers.length, lengths)
            buffers.steps[self._place].run()
        self._place = buffers.states.after(self._place)
        for session in sessions:
            session.note_batch_step()
        self._latest = StepLogits(gpu, buffers, {session: session.fed for session in sessions})
        size = gpu.package.decoder.vocabulary
        return [ListedRow(size, self._latest, slot.row, listed=0) for slot in slots]

    def bring_back(self, session: CapturedSession) -> None:
        slot, own, copier = _slot(session), session.own_buffers, self._gpu.copier
        assert copier is not None  # or there are no batches
        with self._gpu.lock, device_errors(self._gpu.device):
            if slot.shared < session.position:
                parts = copier.copied(list(self._buffers.kv.values()), slot.shared, session.position, row=slot.row)
                copier.write(list(own.kv.values()), slot.shared, parts)
            if self._rows is not None:
                self._rows.copy_out(self._buffers.states.at(self._place), slot.row, own.states.at(session.place))
        slot.shared, slot.is_newer = session.position, False  # not before: what fails leaves it where it is

    def release(self, session: CapturedSession) -> None:
        self._owners[_slot(session).row] = None
        session.slot = None

    def close(self) -> None:
        for owner in self._owners:
            if owner is not None:
                _slot(owner).leave(owner)
        self._buffers.close()

    def _enter(self, session: CapturedSession, stepping: Sequence[CapturedSession]) -> Slot:
        """Copies what a row lacks of a session; the row is the one that it had, or that of one that waits."""
        slot = session.slot
        if slot is None or slot.batch is not self:
            if slot is not None:
                slot.leave(session)
            slot = session.slot = Slot(self, self._free_row(stepping))
            self._owners[slot.row] = session
        own, copier, states = session.own_buffers, self._gpu.copier, self._buffers.states
        if slot.is_newer:
            return slot
        assert copier is not None  # or there are no batches
        if slot.shared < session.position:
            parts = copier.copied(list(own.kv.values()), slot.shared, session.position)
            copier.write(list(self._buffers.kv.values()), slot.shared, parts, row=slot.row)
        if self._rows is not None:
            after = states.after(self._place)
            self._rows.copy_in(states.at(self._place), slot.row, own.states.at(session.place), states.at(after))
            self._place = after
        slot.shared, slot.is_newer = session.position, True
        return slot

    def _free_row(self, stepping: Sequence[CapturedSession]) -> int:
        row = next((row for row, owner in enumerate(self._owners) if owner is None), None)
        if row is None:
            row = next(row for row, owner in enumerate(self._owners) if owner not in stepping)
            waiting = self._owners[row]
            assert waiting is not None
            self.release(waiting)  # its newest tokens were brought back
        return row


class Batches:
    """Those of a model. Where one cannot be made, cannot be captured or is wrong, sequences take turns."""

    def __init__(self, gpu: GuessingGpu, start: Callable[[bytes], ort.InferenceSession]) -> None:
        """start: makes a session on the GPU of a graph."""
        self.max_batch = WIDTHS[-1]
        self._gpu, self._start = gpu, start
        self._batches: list[Batch] = []
        self._rows: RowCopier | None = None
        self._checked: set[int] = set()  # widths of which a step was that of single ones
        # by the most sequences that it is for; None: the first way, whether or not another one is faster
        self.paces: dict[int, Pace] | None = {
            most: Pace(f"steps of up to {most} sequences", ways) for most, ways in _WAYS.items()
        }

    def joins(self, session: Session, token: int) -> bool:
        """Whether that step can be one of a batch: not of an image, nor behind one that moves positions."""
        assert isinstance(session, CapturedSession)  # of this engine
        return self.max_batch > 1 and session.position > 0 and not is_image(token) and not session.has_own_positions

    def run(self, rows: Sequence[BatchRow]) -> list[Logits]:
        """One token for each of captured sessions, not interrupted."""
        tokens = {cast("CapturedSession", row.session): row.tokens[0] for row in rows}
        logits: dict[CapturedSession, Logits] = {}
        with ExitStack() as stack:
            for session, token in tokens.items():
                stack.enter_context(session.uninterrupted())
                session.prepare_step(token)
            together = [session for session, token in tokens.items() if self.joins(session, token)]
            if len(together) > 1:
                logits |= zip(together, self._step(together, [tokens[session] for session in together]), strict=True)
            for session, token in tokens.items():
                if session not in logits:
                    logits[session] = session.feed([token])
        return [logits[session] for session in tokens]

    def close(self) -> None:
        self.max_batch = 1
        while self._batches:
            self._drop(self._batches[-1])

    def _step(self, sessions: Sequence[CapturedSession], tokens: Sequence[int]) -> list[Logits]:
        most = _next(_WAYS, len(sessions))
        pace = None if self.paces is None else self.paces[most]
        way = _WAYS[most][0] if pace is None else pace.way
        by_session = dict(zip(sessions, tokens, strict=True))
        logits: dict[CapturedSession, Logits] = {}
        has_room = True
        for part in _narrow_parts(sessions) if way == _NARROW else [sessions]:
            fed = [by_session[session] for session in part]
            is_together = way != _IN_TURNS and len(part) > 1 and self.max_batch > 1  # 1: given up, maybe just now
            batch = self._batch_for(part) if is_together else None
            has_room &= batch is not None or not is_together
            if batch is None:
                found = _alone(part, fed)
            elif batch.width in self._checked:
                found = batch.step(part, fed)
            else:
                found = self._checked_step(batch, part, fed)
            logits |= zip(part, found, strict=True)
        if pace is not None and has_room:  # else nothing is compared
            pace.note(hash(tuple(map(id, sessions))), sessions[0].position)
        return [logits[session] for session in sessions]

    def _checked_step(self, batch: Batch, sessions: Sequence[CapturedSession], tokens: Sequence[int]) -> list[Logits]:
        """The first step of a width, and the same ones alone, whose logits it gives."""
        found = [_values(logits) for logits in batch.step(sessions, tokens)]
        for session in sessions:
            session.take_step_back()
        logits = _alone(sessions, tokens)
        for ours, exact in zip(found, map(_values, logits), strict=True):
            if not np.abs(ours - exact).max() <= _TOLERANCE * exact.std():
                self._give_up(f"a step of {batch.width} differs by {np.abs(ours - exact).max():.3g}, "
                              f"where logits vary by {exact.std():.3g}")  # fmt: skip
                return logits
        self._checked.add(batch.width)
        return logits

    def _batch_for(self, sessions: Sequence[CapturedSession]) -> Batch | None:
        """The batch that most of these are in; None: they take turns."""
        width = _next(WIDTHS, len(sessions))
        tokens = max(session.position for session in sessions) + 1
        held = Counter(cast("Batch", session.slot.batch) for session in sessions if session.slot is not None)
        if held:
            batch = held.most_common(1)[0][0]
            is_as_fast = (batch.width > FEW) == (width > FEW)
            if is_as_fast and batch.width >= len(sessions) and batch.capacity >= tokens:
                return batch
            self._drop(batch)
        for batch in [one for one in self._batches if not one.is_used]:
            self._drop(batch)
        # not what the sequences have room for: one may have the buffers of a long one that was closed
        own = max(session.capacity for session in sessions)
        sizes = [rounded_capacity(size, self._gpu.context) for size in (min(_GROWTH * tokens, own), tokens)]
        capacity = next((size for size in sizes if self._has_room(width, size)), 0)
        if not capacity:
            return None
        try:
            batch = Batch(self._gpu, self._row_copier(), width, capacity)
        except Exception as error:  # noqa: BLE001 - whatever it is, sequences step alone
            return self._give_up(first_line(error))
        if batch.failure:
            return self._give_up(batch.failure)
        self._batches.append(batch)
        return batch

    def _drop(self, batch: Batch) -> None:
        batch.close()
        self._batches.remove(batch)  # not where that fails: sequences are in it yet

    def _give_up(self, reason: str) -> None:
        _log.info("sequences of '%s' take turns: %s", self._gpu.package.name, reason)
        self.close()

    def _has_room(self, width: int, capacity: int) -> bool:
        decoder, item = self._gpu.package.decoder, np.dtype(self._gpu.dtype).itemsize
        token = item * sum(2 * attention.kv_heads * attention.head_dim for attention in decoder.kv_attentions)
        states = PLACES_OF_BATCH * state_bytes(decoder, item)
        rows = [(one.width, one.capacity) for one in self._batches] + [(width, capacity)]
        taken = sum(rows * (token * tokens + states) for rows, tokens in rows)
        return taken <= WEBGPU_BATCHES.most_bytes(self._gpu.device.memory)

    def _row_copier(self) -> RowCopier | None:
        shapes = list(state_shapes(self._gpu.package.decoder).values())
        if shapes and self._rows is None:
            self._rows = RowCopier(shapes, np.dtype(self._gpu.dtype), self._start)
        return self._rows


def _next(numbers: Iterable[int], count: int) -> int:
    return next(number for number in numbers if number >= count)


def _narrow_parts(sessions: Sequence[CapturedSession]) -> list[Sequence[CapturedSession]]:
    """As few parts of FEW at most as there can be. Who is in a batch like that with others stays with them."""
    inside: dict[Batch | None, list[CapturedSession]] = {}
    for session in sessions:
        batch = None if session.slot is None else cast("Batch", session.slot.batch)
        inside.setdefault(batch if batch is not None and batch.width <= FEW else None, []).append(session)
    others = inside.pop(None, [])
    held = sorted(inside.values(), key=len, reverse=True)
    count = -(-len(sessions) // FEW)
    parts = [*held[:count], *([] for _ in range(count - len(held)))]
    for session in chain(*held[count:], others):
        min(parts, key=len).append(session)
    return [*parts]


def _alone(sessions: Sequence[CapturedSession], tokens: Sequence[int]) -> list[Logits]:
    return [session.feed([token]) for session, token in zip(sessions, tokens, strict=True)]


def _slot(session: CapturedSession) -> Slot:
    assert session.slot is not None  # it has a row
    return session.slot


def _is_inside(session: CapturedSession, batch: Batch) -> bool:
    return session.slot is not None and session.slot.batch is batch and session.slot.is_newer


def _values(logits: Logits) -> np.ndarray:
    return np.array(logits.values(range(logits.size)))
