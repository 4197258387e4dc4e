"""Captured steps on WebGPU: a session that replays its steps, and keeps what they decode greedily on the GPU.

A step takes its token and length from buffers, and puts the best next token and length there (webgpu_graph.py). So
several steps run one after the other without the host, and their tokens are read together. While the caller has to do
with those, the GPU already computes the next ones. Steps that were not wanted are forgotten, as a rewind forgets: they
have written behind the end of the sequence. Where the caller says how it samples, the next token is a guess of its
choice (webgpu_guesses.py).
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from embedllm.backends.gpu.images import is_image
from embedllm.backends.gpu.session import bound_to
from embedllm.backends.gpu.unbatched_session import Buffers, UnbatchedSession
from embedllm.backends.gpu.webgpu_capture import CapturedRun
from embedllm.backends.gpu.webgpu_draws import ROWS
from embedllm.backends.gpu.webgpu_graph import KEPT, NUMBERS
from embedllm.backends.gpu.webgpu_guesses import GuessBuffers, Guesses, GuessingGpu
from embedllm.backends.gpu.webgpu_states import StateRing
from embedllm.backends.ort.runtime import feed_errors, ort
from embedllm.backends.sessions.topk_logits import Best, ListedRow
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import KeyValues
    from embedllm.sampling.draws import Draws
    from embedllm.types import F32, Logits

_log = logging.getLogger("embedllm")
_ONE_BY_ONE = "one by one"
SAMPLED_WAYS = (_ONE_BY_ONE, "ahead")  # of steps
_CERTAIN = 2  # greedy steps in a row, after which others run ahead
_AHEAD_S = 0.02  # of work ahead: what is not wanted delays what comes next by that much


class StepBuffers(Buffers):
    """Buffers with a step that is captured over them; of a recurrent model one for each place of its states."""

    def __init__(self, gpu: GuessingGpu, capacity: int, rows: int = 1) -> None:
        super().__init__(gpu, capacity, rows)
        self.rows = rows
        self._gpu = gpu
        self.token = gpu.place(np.zeros((rows, 1), np.int64))
        self.length = gpu.place(np.zeros(rows, np.int32))  # of each sequence with that token, less one
        self.best_rows = gpu.place(np.zeros((KEPT, NUMBERS), np.float32))
        self._fixed = {
            # what attention is told as the length: docs/webgpu.md#capture
            "total_sequence_length": gpu.place(np.array([self.capacity], np.int32)),
            "logits_from": gpu.place(np.array([-1], np.int64)),
            "input_ids": self.token,
        }
        self.states = StateRing(gpu, rows)
        self.states.reset(0)
        self.steps = [self._bound(place) for place in range(self.states.places)]
        self.failure = next((step.failure for step in self.steps if step.failure), "")  # why steps are not captured
        self._guess: GuessBuffers | None = None

    def bind_state(self, binding: ort.IOBinding, place: int) -> None:
        """Binds what a step takes from the run before, and leaves to the next. place: of its states."""
        self.states.bind(binding, place)
        binding.bind_ortvalue_input("seqlens_k", self.length)
        binding.bind_ortvalue_input("found", self.best_rows)
        binding.bind_ortvalue_output("next_ids", self.token)
        binding.bind_ortvalue_output("next_seqlens_k", self.length)
        binding.bind_ortvalue_output("next_found", self.best_rows)

    def guess(self) -> GuessBuffers:
        """What guesses the token behind a step; made when it is first asked for."""
        if self._guess is None:
            assert self._gpu.guesser is not None  # or nobody asks
            self._guess = GuessBuffers(self._gpu, self._gpu.guesser, self.logits, self.token)
        return self._guess

    def close(self) -> None:
        for run in self.steps:
            run.close()
        if self._guess is not None:
            self._guess.close()

    def _bound(self, place: int) -> CapturedRun:
        binding = bound_to(self.kv, self._gpu.session)
        for name, value in self._fixed.items():
            binding.bind_ortvalue_input(name, value)
        self.bind_state(binding, place)
        self.bind_tables(binding)
        binding.bind_ortvalue_output("logits", self.logits)
        return CapturedRun(self._gpu, self._gpu.session, binding, "steps")


class SharedBuffers(Protocol):
    """Those of sequences that step together: webgpu_batch.py."""

    def bring_back(self, session: CapturedSession) -> None:
        """Copies what is new in a session's row to its own buffers."""
        ...

    def release(self, session: CapturedSession) -> None:
        """Has its row for others; what is new there is lost."""
        ...


class Slot:
    """The row of a batch that a sequence has, whether or not its newest tokens are there."""

    def __init__(self, batch: SharedBuffers, row: int) -> None:
        self.batch, self.row = batch, row
        self.shared = 0  # tokens whose KV is the same there and in the sequence's own buffers
        self.is_newer = False  # that row holds the newest tokens and states, its own buffers those of before

    def leave(self, session: CapturedSession) -> None:
        """Before its session goes on without it."""
        if self.is_newer:
            self.batch.bring_back(session)
        self.batch.release(session)


class CapturedSession(UnbatchedSession):
    """One sequence whose steps are captured. Its logits are those of the latest feed: those of before are gone."""

    def __init__(self, gpu: GuessingGpu, capacity: int) -> None:
        super().__init__(gpu, capacity)
        self._running = self._not_captured = gpu.replaying(None)
        self.place = 0  # of the states that belong to what is held
        self.slot: Slot | None = None  # its row of a batch, where it had one
        self.fed = 0  # how often
        self._row_at = -1  # tokens held when the latest row came
        self._last = 0  # the token that it came with
        self._greedy = 0  # steps in a row that took the best token, and asked for nothing else
        self._frontier = -1  # tokens up to which steps have run, with the best ones from the latest row on
        self._best: deque[Best] = deque()  # of the latest row, and of those ahead
        self._unread = 0  # runs behind these whose best tokens are on the GPU only
        self._guesses: Guesses | None = None  # None: greedy steps alone run ahead
        self._started, self._step_s = 0.0, _AHEAD_S  # when the last steps were started, and how long one takes

    def feed(self, tokens: Sequence[int]) -> Logits:
        if len(tokens) == 1 and self.position and not is_image(tokens[0]):
            return self._step(tokens[0]) if self._guesses is None else self._sampled_step(self._guesses, tokens[0])
        buffers = self._prepare(tokens)
        self._forget()
        with self._whole():
            for piece in self._pieces(tokens):
                self._run_piece(buffers, piece, self._not_captured)
        if is_image(tokens[-1]):  # whose graph, where it has one of its own, finds no best token
            return NumpyLogits(self._gpu.read(buffers.logits)[0, 0].astype(np.float32, copy=False))
        self._greedy, self._unread, self._last = 0, 1, tokens[-1]
        self._row_at = self._frontier = self.position
        return self._row()

    def feed_all(self, tokens: Sequence[int]) -> F32:
        self._forget()
        self._running = self._not_captured
        return super().feed_all(tokens)

    def foresee(self, draws: Draws | None) -> None:
        gpu = cast("GuessingGpu", self._gpu)  # which it was opened with
        self._guesses = None if draws is None or gpu.guesser is None else Guesses(draws)

    def import_state(self, state: KeyValues) -> None:
        self._forget()
        super().import_state(state)

    def rewind(self, position: int) -> None:
        super().rewind(position)
        if self.slot is not None:
            self.slot.shared = min(self.slot.shared, position)

    def close(self) -> None:
        self._forget()
        if self.slot is not None:
            self.slot.batch.release(self)
        super().close()

    @property
    def own_buffers(self) -> StepBuffers:
        """Whether or not its newest tokens are there."""
        return cast("StepBuffers", super()._require_buffers())

    @property
    def has_own_positions(self) -> bool:
        """Whether positions of its tokens are not their places, by the images before them."""
        return bool(self._places)

    def prepare_step(self, token: int) -> None:
        """Before a step with others: checks the token and makes room for it."""
        self._check_tokens([token])
        if self.position == self.capacity:
            self._reserve(self.position + 1)  # which brings back what a batch has
            self._forget()  # the next token and its place were in the buffers of before

    def note_batch_step(self) -> None:
        """After a step with others."""
        self._forget()
        self.position += 1

    def take_step_back(self) -> None:
        """Forgets the first step in a batch: its own buffers hold what was before it."""
        assert self.slot is not None  # it was in a batch
        self.slot.is_newer = False
        self.rewind(self.position - 1)

    def best(self, index: int, count: int) -> Best:
        """The best token of the row that came with that feed. Raises ValueError when there was another since."""
        self._check(index)
        if not self._best:
            self._read_best()
        return self._best[0]

    def whole(self, index: int) -> NumpyLogits:
        """The row that came with that feed. Raises ValueError when there was another since."""
        self._check(index)
        self._greedy = 0
        if self._frontier != self._row_at:  # steps ahead have taken its place
            self._run_again()
        values = self._gpu.read(self._require_buffers().logits)[0, 0]
        return NumpyLogits(values.astype(np.float32, copy=False))

    def _step(self, token: int) -> Logits:
        before = self._require_buffers()
        has_grown = self._prepare([token]) is not before
        is_best = self.position == self._row_at and bool(self._best) and self._best[0].tokens[0] == token
        self._greedy = self._greedy + 1 if is_best else 0
        if is_best and self._frontier > self._row_at:
            self._best.popleft()  # it has run already
        else:
            is_given = is_best and self._frontier == self._row_at and not has_grown  # new buffers hold other numbers
            self._best.clear()
            self._run_steps(1, None if is_given else (token, self.position))
            self._frontier, self._unread = self.position + 1, 1
        self._note_step(token)
        if self._greedy >= _CERTAIN and self._frontier == self._row_at and not self._best:
            self._read_best()
        return self._row()

    def _note_step(self, token: int) -> None:
        self.fed += 1
        self._last = token
        self.position += 1
        self.place = self._steps().states.after(self.place)
        self._row_at = self.position

    def _sampled_step(self, guesses: Guesses, token: int) -> Logits:
        """A step of a request whose sampler is known, in the way that is the faster one."""
        pace = cast("GuessingGpu", self._gpu).pace
        if pace is not None:
            pace.note(id(self), self.position)
            if pace.way == _ONE_BY_ONE:
                if not guesses.is_idle:
                    self._forget()
                return self._step(token)
        return self._guessed_step(guesses, token)

    def _guessed_step(self, guesses: Guesses, token: int) -> Logits:
        """A step whose next ones run ahead. Those that ran with this token already count."""
        self._prepare([token])  # where that takes new buffers, nothing runs ahead: it would have no room
        if self.position != self._row_at or not guesses.check(token):
            self._forget()
            if not guesses.pays:
                _log.debug("guesses of sampled tokens are often wrong: steps run one by one")
                self._guesses = None
                return self._step(token)
        if guesses.is_empty:
            if not guesses.running:
                self._frontier = self.position
                self._run_guessed(guesses, (token, self.position))
            ring = self._gpu.read(self._steps().guess().rows)
            self._step_s = (time.monotonic() - self._started) / guesses.running
            guesses.put(ring)
            if self._frontier < self.capacity and not self._stopping:
                self._run_guessed(guesses, None)
        self._note_step(token)
        return guesses.next_row()

    def _run_guessed(self, guesses: Guesses, first: tuple[int, int] | None) -> None:
        """Runs steps ahead, each with the guess behind the one before."""
        steps = self._steps()
        guess, half = steps.guess(), (steps.states.most_ahead + 1) // 2
        count = self._count_ahead(min(ROWS, half))
        self._gpu.write(guess.numbers, guesses.numbers(count))
        self._run_steps(count, first, behind=self._frontier - self.position, guess=guess)
        self._frontier, guesses.running = self._frontier + count, count

    def _row(self) -> Logits:
        return ListedRow(self._decoder.vocabulary, self, self.fed, listed=0)

    def _read_best(self) -> None:
        """Reads what is on the GPU only; and where it is certain, starts the steps that are wanted behind."""
        if not self._unread:
            self._run_again()
        rows = self._gpu.read(self._steps().best_rows)[KEPT - self._unread :]
        self._step_s = (time.monotonic() - self._started) / self._unread
        self._best += map(best_of, rows.tolist())
        self._unread = 0
        ahead, most = self._frontier - self._row_at, self._steps().states.most_ahead
        room = min(self.capacity - self._frontier, most - ahead, (most + 1) // 2)  # half: the others are being read
        if self._greedy >= _CERTAIN and room > 0 and not self._stopping:
            count = self._count_ahead(min(KEPT, room))
            self._run_steps(count, None, behind=ahead)
            self._frontier, self._unread = self._frontier + count, count

    def _count_ahead(self, most: int) -> int:
        """How many steps may run ahead now, where there is room for one."""
        return min(max(int(_AHEAD_S / max(self._step_s, 1e-6)), 1), most, self.capacity - self._frontier)

    def _run_again(self) -> None:
        """Runs the step that gave the latest row once more: its token and its place are known."""
        self._best.clear()
        self._run_steps(1, (self._last, self._row_at - 1), behind=-1)
        self._frontier, self._unread = self._row_at, 1

    def _run_steps(
        self, count: int, first: tuple[int, int] | None, *, behind: int = 0, guess: GuessBuffers | None = None
    ) -> None:
        """Runs steps one after the other, each with the best token of the one before, or with the guessed one.

        first: the first one's token and position; None: they are in the buffers. behind: runs from the states of what
        is held to those that the first one reads. Raises Interrupted or DeviceError.
        """
        buffers, gpu = self._steps(), self._gpu
        steps = [buffers.steps[buffers.states.after(self.place, behind + at)] for at in range(count)]
        self._started = time.monotonic()
        with gpu.lock, feed_errors(self.position, lambda: self._stopping):
            try:
                self._fit_tables(buffers)
                if first is not None:
                    gpu.write(buffers.token, np.array([first[:1]], np.int64))
                    gpu.write(buffers.length, np.array(first[1:], np.int32))
                for step in steps:
                    self._running = step.options
                    self._running.terminate = self._stopping
                    step.run()
                    if guess is not None:
                        guess.run.run()
            except BaseException:
                self._forget()
                raise

    def _run(
        self, binding: ort.IOBinding, options: ort.RunOptions, end: int, session: ort.InferenceSession | None = None
    ) -> None:
        super()._run(binding, options, end, session)
        self.place = self._steps().states.after(self.place)

    def _bind(
        self,
        buffers: Buffers,
        tokens: Sequence[int],
        *,
        logits_from: int,
        session: ort.InferenceSession | None = None,
    ) -> ort.IOBinding:
        steps, end = self._steps(), self.position + len(tokens)
        inputs: dict[str, NDArray[np.generic]] = {
            "total_sequence_length": np.array([end], np.int32),
            "logits_from": np.array([logits_from], np.int64),
        }
        binding = self._bind_inputs(buffers, tokens, inputs, session)
        self._gpu.write(steps.length, np.array([end - 1], np.int32))
        steps.bind_state(binding, self.place)
        if logits_from >= 0:  # several rows, whose best tokens are of no use
            for name in ("next_ids", "next_seqlens_k"):
                binding.bind_output(name)
        return binding

    def _require_buffers(self) -> Buffers:
        buffers = super()._require_buffers()
        if self.slot is not None and self.slot.is_newer:
            self.slot.batch.bring_back(self)
        return buffers

    def _steps(self) -> StepBuffers:
        return cast("StepBuffers", self._require_buffers())  # the engine has no others

    def _forget(self) -> None:
        """Forgets the latest row and what runs ahead of it."""
        self.fed += 1
        self._best.clear()
        self._unread, self._greedy, self._row_at, self._frontier = 0, 0, -1, -1
        if self._guesses is not None:
            self._guesses.forget()

    def _check(self, fed: int) -> None:
        self._require_buffers()
        if fed != self.fed:
            raise ValueError("these logits are gone: their session was fed again, or closed.")


def best_of(numbers: Sequence[float]) -> Best:
    """Of a row of `found` in webgpu_graph.py."""
    token, logit, total = numbers
    return Best([int(token)], [logit], logit + math.log(total) if total >= 1 else math.nan)
