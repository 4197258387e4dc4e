"""Sampled steps that run ahead on WebGPU: the GPU guesses each token, and the sampler chooses from the same rows.

A graph behind each step (webgpu_draws.py) puts its guess into the inputs of the next one, and keeps the row. The rows
of a few steps are read together, which takes little longer than one, and the next few run while the sampler chooses.
A token that it chooses otherwise rewinds what came of the guess. So the text is the sampler's, whatever is guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from embedllm.backends.gpu.webgpu_capture import CapturedRun, CapturingGpu
from embedllm.backends.gpu.webgpu_draws import DIGITS, NUMBERS, ROWS, draws_graph, guess_of, numbers_of
from embedllm.backends.gpu.webgpu_pace import Pace
from embedllm.backends.ort.runtime import ort, recording_options
from embedllm.errors import DeviceError
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import Foresees, Session
    from embedllm.sampling.draws import Draws
    from embedllm.types import Logits

    class ForeseeingSession(Session, Foresees, Protocol):
        """A session that may guess."""


Start: TypeAlias = Callable[[bytes, ort.SessionOptions, Mapping[str, str]], ort.InferenceSession]
_ALLOWED_WRONG, _RIGHT_EACH = 2, 8  # guesses: wrong ones at first, and right ones for each more: docs/webgpu.md#sampled
_TRIED_STEPS = 6


class Guesser:
    """The graph that guesses, for all sequences of a model."""

    def __init__(self, gpu: CapturingGpu, start: Start) -> None:
        """start: makes a session on the GPU. Raises what ONNX Runtime raises where the graph does not run on it."""
        options = recording_options()
        options.enable_mem_pattern = False  # capturing takes no others
        model = draws_graph(gpu.package.decoder.vocabulary, np.dtype(gpu.dtype))
        self.session = start(model, options, {"enableGraphCapture": "1"})


class GuessingGpu(CapturingGpu, Protocol):
    """What guessed steps need of their engine."""

    guesser: Guesser | None  # None: sampled steps do not run ahead
    pace: Pace | None  # None: all that are foreseen run ahead


class GuessBuffers:
    """What the graph reads and writes beside a step, at fixed places on the GPU."""

    def __init__(self, gpu: CapturingGpu, guesser: Guesser, logits: ort.OrtValue, token: ort.OrtValue) -> None:
        """logits, token: of the step."""
        self.numbers = gpu.place(np.zeros((1, NUMBERS), np.float32))
        self.rows = gpu.place(np.zeros((ROWS, 1, gpu.package.decoder.vocabulary + DIGITS), gpu.dtype))
        binding = guesser.session.io_binding()
        for name, value in (("logits", logits), ("numbers", self.numbers), ("rows", self.rows)):
            binding.bind_ortvalue_input(name, value)
        for name, value in (("next_ids", token), ("next_numbers", self.numbers), ("next_rows", self.rows)):
            binding.bind_ortvalue_output(name, value)
        self.run = CapturedRun(gpu, guesser.session, binding, "guesses of sampled tokens")

    def close(self) -> None:
        self.run.close()


class Guesses:
    """The guesses of one request in one sequence, and the rows of steps that ran by them."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._latest: int | None = None  # the guess that came with the row that was given last
        self._rows: deque[NDArray[np.floating]] = deque()  # read, and not given yet
        self.running = 0  # steps behind these, whose rows are on the GPU only
        self._right = self._wrong = 0

    @property
    def is_empty(self) -> bool:
        """Whether no row was read that is not given yet."""
        return not self._rows

    @property
    def is_idle(self) -> bool:
        """Whether nothing was guessed, or all of it is forgotten."""
        return self.is_empty and not self.running and self._latest is None

    @property
    def pays(self) -> bool:
        """Whether so few guesses were wrong that steps ahead gain more than they lose."""
        return self._wrong <= _ALLOWED_WRONG + self._right / _RIGHT_EACH

    def check(self, token: int) -> bool:
        """Whether the latest guess was this token, which the sampler has chosen."""
        if self._latest is None:
            return False
        is_right = token == self._latest
        self._right, self._wrong = self._right + is_right, self._wrong + (not is_right)
        return is_right

    def numbers(self, count: int) -> NDArray[np.float32]:
        """What the graph takes for as many more steps behind those that run, and those whose rows are here."""
        offset = len(self._rows) + self.running
        return numbers_of(self._draws.sampling, self._draws.upcoming(offset + count)[offset:])

    def put(self, ring: NDArray[np.floating]) -> None:
        """Takes the rows of the steps that run, the last ones of these [ROWS, 1, V + DIGITS]."""
        self._rows.extend(ring[ROWS - self.running :, 0])
        self.running = 0

    def next_row(self) -> Logits:
        row = self._rows.popleft()
        self._latest = guess_of(row)
        return NumpyLogits(row[:-DIGITS].astype(np.float32))

    def forget(self) -> None:
        """Forgets all rows, given or not."""
        self._rows.clear()
        self._latest, self.running = None, 0


def check_guesses(session: ForeseeingSession, tokens: Sequence[int]) -> None:
    """Raises DeviceError where steps that run ahead give other rows than steps one by one. tokens: a prompt."""
    sampler = Sampler(Sampling(seed=0))
    session.foresee(sampler.draws)
    row = session.feed(tokens)
    chosen: list[int] = []
    rows: list[list[float]] = []
    for _ in range(_TRIED_STEPS):
        chosen.append(sampler.pick(row).token)
        row = session.feed(chosen[-1:])
        rows.append(row.values(range(row.size)))
    session.foresee(None)
    session.rewind(len(tokens))
    for token, values in zip(chosen, rows, strict=True):
        row = session.feed([token])
        if row.values(range(row.size)) != values:
            raise DeviceError("rows of logits change on the way")
