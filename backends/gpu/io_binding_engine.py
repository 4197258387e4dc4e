"""An engine whose KV and logits stay in a device's own memory: CUDA, and others of ONNX Runtime that bind addresses.

Steps of several sequences are one run over their slots of a pool (kv_pool.py). Greedy decoding runs one step ahead:
while the caller still has to do with the tokens, the device already computes what follows them. A step that was not
wanted is forgotten, as a rewind forgets: it has written behind the end of each sequence.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import BatchRow, Device
from embedllm.backends.gpu.device_logits import HEADS, LARGEST_VOCABULARY, LogitsBoard, RunLogits, sizes
from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.gpu.images import ImageDecoder, bind_images, open_images
from embedllm.backends.gpu.io_binding_session import ResidentSession
from embedllm.backends.gpu.kv_pool import KvPool
from embedllm.backends.gpu.kv_slots import WIDTHS, runs
from embedllm.backends.gpu.kv_steps import SHORTEST, Step
from embedllm.backends.gpu.on_device import OnDevice
from embedllm.backends.gpu.several_tokens import SeveralTokens
from embedllm.backends.gpu.state_pool import SIDES, state_bytes
from embedllm.backends.ort.runtime import (
    device_errors,
    load_errors,
    ort,
    recording_options,
)
from embedllm.backends.sessions.hidden_rows import OF_PROMPT
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import HIDDEN_VARIANTS
from embedllm.package.onnx_reader import with_any_size
from embedllm.package.package import Package

if TYPE_CHECKING:
    from embedllm.backends.base import Session
    from embedllm.types import Logits

CHUNK = 2048  # tokens of a prompt fed at once
_BUDGET = 1024  # tokens of prompts beside steps (docs/cuda.md)
_SHARE = 0.5  # of the memory that is free once the weights are there, for the KV of a full batch
_TOKEN_BYTES = 8
_GIVE_HIDDEN = {variant.name for variant in HIDDEN_VARIANTS}
_CERTAIN = 2  # greedy steps in a row, after which the next one runs ahead
_WARM_PROMPTS = (8, 32, 64, 96, 192, 384, 768)  # tokens, for which CUDA has different kernels to load


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A step that runs, and was not asked for yet: it takes the best tokens of a run."""

    run: RunLogits
    rows: dict[ResidentSession, tuple[int, int]]  # of each session: its row in that run, and its version then

    def has(self, session: ResidentSession, token: int) -> bool:
        row, version = self.rows.get(session, (0, -1))
        return version == session.version and self.run.best_token(row) == token


class ResidentEngine(OnDevice):
    """A folder's graph on one device. What differs between providers is in the methods of its subclasses."""

    chunk = CHUNK
    mixes_lengths = False  # GroupQueryAttention takes one row when there are several tokens behind others
    prompt_budget = _BUDGET
    reduces = False  # whether logits are reduced on the device

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        *,
        capture: bool = True,
        lock: threading.RLock | None = None,
    ) -> None:
        """As OnDevice. Raises DeviceUnavailable when part of the work would run on the CPU."""
        super().__init__(package, graph, device, capture=capture, lock=lock)
        self.gives_hidden = graph.variant in _GIVE_HIDDEN
        self._pools: dict[int, KvPool] = {}
        self._ahead: _Ahead | None = None
        path = package.folder / graph.file
        # the model's graph declares the logits of one token and gives those of several
        self._session = self.start_over_weights(path, with_any_size(path.read_bytes(), "logits", 1), package.folder)
        self.images, self.images_unsupported = open_images(
            package, graph, device, self._session, self._start_beside, self.lock
        )
        self.image_decoder = ImageDecoder(package, graph, device, self._start_beside)
        self.memory = memory = self.open_memory()
        vocabulary = package.decoder.vocabulary
        has_heads = self.reduces and vocabulary < LARGEST_VOCABULARY
        kind = np.dtype(self.dtype).name
        self.head_sizes = sizes(vocabulary) if has_heads else {}
        self.heads = {name: self._load_head(HEADS / f"{name}.{kind}.onnx") for name in self.head_sizes}
        with self.lock, device_errors(device):
            self.max_batch = self._fitting()
            self.tokens = DeviceBlock(memory, 8 * self.context)  # of a prompt
            self.mask = DeviceBlock(memory, 8 * self.context)  # zeros behind the first
            memory.zero(self.mask.address, self.mask.size)
            self.prompts = LogitsBoard(self, 1, vocabulary)
            self._steps = LogitsBoard(self, self.max_batch, vocabulary)
            size = OF_PROMPT * package.decoder.hidden * np.dtype(self.dtype).itemsize
            self.hidden = DeviceBlock(memory, size) if self.gives_hidden else None  # of the latest prompt
        self.several = SeveralTokens(self)

    def _load_head(self, path: Path) -> ort.InferenceSession:
        with load_errors(path):
            return self._started(os.fspath(path), captures=self.captures)

    def _start_beside(self, path: str) -> ort.InferenceSession:
        return self._started(path, captures=False)

    def _started(self, path: str, *, captures: bool) -> ort.InferenceSession:
        with self.lock:
            return self.start(path, recording_options(), captures=captures)

    def open(self, capacity: int = 0) -> ResidentSession:
        with self.lock, device_errors(self.device):
            return ResidentSession(self, capacity)

    def close(self) -> None:
        if self._session is None:
            return
        with self.lock, device_errors(self.device):
            self.memory.synchronize()
            if self.images is not None:
                self.images.close()
            self.image_decoder.close()
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()
            self.heads.clear()
            self._session = self._ahead = None
            del self.prompts, self._steps, self.several, self.tokens, self.mask, self.hidden
            self.memory.trim()

    def pool(self, capacity: int) -> KvPool:
        """The smallest whose sequences hold that many tokens."""
        size = SHORTEST
        while size < capacity:
            size *= 2
        size = min(size, self.context)
        if size not in self._pools:
            self.session  # noqa: B018 - raises ValueError once it was closed
            self._pools[size] = KvPool(self, size)
        return self._pools[size]

    def run_batch(self, rows: Sequence[BatchRow]) -> Sequence[Logits]:
        """One token for each of 1 to max_batch sessions."""
        if any(_steps_alone(row) for row in rows):
            return self._run_alone(rows)
        with self.lock, device_errors(self.device):
            sessions: list[ResidentSession] = []
            for session, tokens in rows:
                assert isinstance(session, ResidentSession)
                session.reserve_for(tokens)
                sessions.append(session)
            tokens = [row.tokens[0] for row in rows]
            ahead, self._ahead = self._ahead, None
            if ahead is None or not all(ahead.has(one, token) for one, token in zip(sessions, tokens, strict=True)):
                self._launch(sessions, tokens)
            for session, token in zip(sessions, tokens, strict=True):
                session.advance(token)
                session.put_hidden(session.pool.hidden(session), 1)
            by_place = sorted(sessions, key=lambda one: one.pool.logits(one))  # those side by side are copied at once
            run = self._gathered(by_place)
            if self.heads and all(one.greedy >= _CERTAIN and one.can_step for one in sessions):
                self._run_ahead(run, by_place)
            logits = {session: run.row(index) for index, session in enumerate(by_place)}
            return [logits[session] for session in sessions]

    def _run_alone(self, rows: Sequence[BatchRow]) -> Sequence[Logits]:
        """As run_batch, where some have inputs that steps lack: each of these in a run of its own, not captured."""
        positions = {row.session: row.session.position for row in rows}
        text = [row for row in rows if not _steps_alone(row)]
        logits: dict[Session, Logits] = {}
        try:
            if text:
                logits |= zip((row.session for row in text), self.run_batch(text), strict=True)
            for row in rows:
                if row.session not in logits:
                    logits[row.session] = row.session.feed(row.tokens)
        except BaseException:
            for session, position in positions.items():
                session.rewind(position)
            raise
        return [logits[row.session] for row in rows]

    def read_prompts(self, rows: Sequence[BatchRow]) -> Sequence[Logits]:
        """All tokens but the last of each in runs of several, padded to the longest, and the last ones as a step.

        So the logits of rows of different lengths come from a captured step; those of the padded run are not used.
        Some prompts with images are read alone.
        """
        logits: dict[Session, Logits] = {}
        with self.lock, device_errors(self.device):
            sessions = {session: tokens for session, tokens in rows if isinstance(session, ResidentSession)}
            for session, tokens in sessions.items():
                session.reserve_for(tokens)
            try:
                for session, tokens in sessions.items():
                    if session.reads_alone(tokens):
                        logits[session] = session.feed(tokens)
                others = [session for session in sessions if session not in logits]
                for pool, indices in _by_pool(others).items():
                    own = sorted((others[row] for row in indices), key=pool.table.slot)
                    for start, stop in runs([pool.table.slot(session) for session in own]):
                        self._read_beside(pool, own[start:stop], sessions)
                if others:
                    steps = [BatchRow(session, sessions[session][-1:]) for session in others]
                    logits |= zip(others, self.run_batch(steps), strict=True)
                return [logits[row.session] for row in rows]
            except BaseException:
                for session in sessions:
                    session.rewind(0)
                raise

    def _read_beside(
        self, pool: KvPool, sessions: Sequence[ResidentSession], prompts: Mapping[ResidentSession, Sequence[int]]
    ) -> None:
        """Reads all but the last token of prompts whose slots lie side by side."""
        longest = max(len(prompts[session]) for session in sessions) - 1
        most = max(1, CHUNK // longest)  # rows whose padded tokens are as many as one prompt's
        for at in range(0, len(sessions), most):
            part = sessions[at : at + most]
            width = max(len(prompts[session]) for session in part) - 1
            ids, mask = np.zeros((2, len(part), width), np.int64)
            with_images = [session.take_images(prompts[session][:-1]) for session in part]
            for row, session in enumerate(part):
                inputs = with_images[row]
                ids[row, : len(prompts[session]) - 1] = prompts[session][:-1] if inputs is None else inputs.tokens
                mask[row, 0] = len(prompts[session]) - 1  # the graph uses the sum of a row
            block = DeviceBlock(self.memory, ids.nbytes + mask.nbytes)
            self.memory.write(block.address, ids)
            self.memory.write(block.address + ids.nbytes, mask)
            binding = pool.beside(pool.table.slot(part[0]), len(part))
            images = bind_images(self, binding, with_images)
            pool.rotary.bind_prompt(binding, 0, width, None, sequences=len(part))
            binding.bind_input("input_ids", *self.where, np.int64, ids.shape, block.address)
            binding.bind_input("attention_mask", *self.where, np.int64, mask.shape, block.address + ids.nbytes)
            self.session.run_with_iobinding(binding, self.replaying(None))
            del images  # the memory was to stay until here
            for session in part:
                session.note_read(len(prompts[session]) - 1)

    def warm_up(self) -> None:
        """Prompts of several lengths, a step of one sequence, and what reduces their logits."""
        session = self.open()
        try:
            for length in _WARM_PROMPTS:
                if length < session.capacity:
                    session.rewind(0)
                    logits = session.feed([0] * length)
                    self._ask_all(logits)
            session.rewind(min(1, session.position))
            for _ in range(2 * SIDES if self.package.decoder.is_recurrent else 2):  # the last of each is replayed
                self._ask_all(session.feed([0]))
            self.memory.synchronize()
        finally:
            session.close()

    def _ask_all(self, logits: Logits) -> None:
        logits.top(1)
        logits.top(2)
        logits.values([1])

    def _fitting(self) -> int:
        """The largest width for which the free memory has room, with sequences of the shortest capacity."""
        length, item = min(SHORTEST, self.context), np.dtype(self.dtype).itemsize
        attentions = self.package.decoder.kv_attentions
        size = sum(2 * attention.kv_heads * length * attention.head_dim * item for attention in attentions)
        size += SIDES * state_bytes(self.session)
        fitting = int(self.memory.free_bytes() * _SHARE / max(size, 1))
        return max(width for width in WIDTHS if width <= max(fitting, 1))

    def _launch(self, sessions: Sequence[ResidentSession], tokens: Sequence[int]) -> None:
        """Starts the steps that append one token to each, of each pool one."""
        for pool, rows in _by_pool(sessions).items():
            own = [sessions[row] for row in rows]
            step = pool.prepare(own)
            pool.give(step, own, [tokens[row] for row in rows])
            self.run_step(step)

    def run_step(self, step: Step) -> None:
        """Runs what is given: captured, where it ran before."""
        options = step.options_async if step.has_run and self.captures else step.options
        self.session.run_with_iobinding(step.binding, options)
        step.has_run = True

    def _gathered(self, sessions: Sequence[ResidentSession]) -> RunLogits:
        """The rows of the steps that were started last, side by side, in the order of these sessions."""
        run = RunLogits(self._steps, sessions)
        self._steps.replace(run)
        size, places = self._steps.row_bytes, [session.pool.logits(session) for session in sessions]
        for start, stop in runs(places, size):
            self.memory.copy(self._steps.address + start * size, places[start], width=(stop - start) * size)
        return run

    def _run_ahead(self, run: RunLogits, sessions: Sequence[ResidentSession]) -> None:
        """Starts the step that greedy decoding asks for next. Its tokens never come to the host before it runs."""
        steps: list[tuple[Step, KvPool, list[int]]] = []
        for pool, rows in _by_pool(sessions).items():
            step = pool.prepare([sessions[row] for row in rows])
            if not step.has_run:  # the first one plans and captures
                return
            steps.append((step, pool, rows))
        tokens = run.start_best()
        for step, pool, rows in steps:
            for start, stop in runs(rows):
                own = [sessions[row] for row in rows[start:stop]]
                pool.give_later(step, own, tokens + rows[start] * _TOKEN_BYTES)
            self.run_step(step)
        self._ahead = _Ahead(run, {session: (row, session.version) for row, session in enumerate(sessions)})


def _steps_alone(row: BatchRow) -> bool:
    assert isinstance(row.session, ResidentSession)
    return row.session.steps_alone(row.tokens[0])


def _by_pool(sessions: Sequence[ResidentSession]) -> dict[KvPool, list[int]]:
    """Which of these lie in each pool."""
    by_pool: dict[KvPool, list[int]] = {}
    for row, session in enumerate(sessions):
        by_pool.setdefault(session.pool, []).append(row)
    return by_pool
