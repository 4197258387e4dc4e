"""Captured runs of several tokens of one sequence, with the logits behind each of them: what verifies drafts.

A few tokens take a GPU little longer than one, but launching their kernels one by one takes longer than they do. So
there are runs of a few numbers of tokens, which are filled up: what is written behind the sequence is forgotten, as a
rewind forgets.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.base import FeedsAll
from embedllm.backends.gpu.capture_check import on_host, why_different
from embedllm.backends.gpu.device_logits import LogitsBoard, LogitsEngine, Owner, RunLogits
from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.gpu.kv_pool import Holder
from embedllm.backends.gpu.kv_slots import padded_width
from embedllm.backends.gpu.kv_steps import Outputs
from embedllm.backends.ort.runtime import device_errors
from embedllm.errors import DeviceError
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.backends.base import Device
    from embedllm.backends.gpu.kv_pool import KvPool
    from embedllm.backends.gpu.kv_steps import Step
    from embedllm.package.package import Package
    from embedllm.types import Logits

MOST = 32  # tokens: the drafts that are proposed at most, and the one before them
_MOST_EXACT = 8  # of a recurrent model, whose states would take what fills a run up: each number is a run of its own
_SLOTS = 8  # of a pool: each has captures of its own, so not all of a large batch
_log = logging.getLogger("embedllm")


class SeveralEngine(LogitsEngine, Protocol):
    """What they need of an engine."""

    device: Device
    package: Package
    context: int  # tokens
    captures: bool
    gives_hidden: bool

    def run_step(self, step: Step) -> None:
        """Runs what is given: captured, where it ran before."""
        ...


class SeveralSession(FeedsAll, Holder, Owner, Protocol):
    """What they need of a session."""

    @property
    def pool(self) -> KvPool: ...

    def steps_alone(self, token: int) -> bool:
        """Whether a step of that token takes inputs that captured runs do not have."""
        ...

    def note_fed(self) -> None:
        """Notes that logits of before are not those of the newest token any more."""
        ...

    def note_appended(self, count: int) -> None:
        """Notes that a run has appended that many tokens."""
        ...

    def put_hidden(self, address: int, count: int) -> None:
        """Notes the hidden states of the tokens that were appended last, which lie there, if the graph gives any."""
        ...

    def go_back(self, position: int, side: int) -> None:
        """To where it stood before its latest runs, which have read the states of that side."""
        ...


class SeveralTokens:
    """The runs of one engine."""

    def __init__(self, engine: SeveralEngine) -> None:
        self._engine = engine
        self._is_exact = engine.package.decoder.is_recurrent
        self._board: LogitsBoard | None = None  # made with the first run: drafts are not for everybody
        self._hidden: DeviceBlock | None = None  # of the latest run
        self._is_right: dict[int, bool] = {}  # by the number of tokens: whether captured runs give what kernels do

    @property
    def is_used(self) -> bool:
        """Whether there was such a run."""
        return self._board is not None

    def width(self, session: SeveralSession, tokens: Sequence[int]) -> int:
        """How many tokens the captured run of these has; 0: they are to be fed kernel by kernel."""
        count = len(tokens)
        if not self._engine.captures or not 1 < count <= (_MOST_EXACT if self._is_exact else MOST):
            return 0
        width = count if self._is_exact else padded_width(count, MOST)
        has_room = session.position + width <= self._engine.context and session.pool.table.slot(session) < _SLOTS
        is_text = not any(map(session.steps_alone, tokens))
        is_wanted = session.position and has_room and is_text and self._is_right.get(width, True)
        return width if is_wanted else 0

    def feed(self, session: SeveralSession, tokens: Sequence[int], width: int) -> Sequence[Logits]:
        """Appends them to a session that has room for `width`; the logits behind each, valid until it is fed again."""
        if width not in self._is_right:
            self._is_right[width] = self._is_as_launched(session, tokens, width)
            if not self._is_right[width]:
                return [NumpyLogits(row) for row in session.feed_all(tokens)]
        run = self._run(session, tokens, width)
        return [run.row(index) for index in range(len(tokens))]

    def _run(self, session: SeveralSession, tokens: Sequence[int], width: int) -> RunLogits:
        engine = self._engine
        decoder = engine.package.decoder
        if self._board is None or self._hidden is None:
            self._board = LogitsBoard(engine, MOST, decoder.vocabulary)
            size = MOST * decoder.hidden * np.dtype(engine.dtype).itemsize if engine.gives_hidden else 1
            self._hidden = DeviceBlock(engine.memory, size)
        session.note_fed()
        run = RunLogits(self._board, [session] * len(tokens))
        self._board.replace(run)
        outputs = Outputs(self._board.address, self._hidden.address)
        engine.run_step(session.pool.prepare_several(session, tokens, width, outputs))
        session.note_appended(len(tokens))
        session.put_hidden(self._hidden.address, len(tokens))
        return run

    def _is_as_launched(self, session: SeveralSession, tokens: Sequence[int], width: int) -> bool:
        """Whether a replayed run gives the logits of kernels launched one by one; leaves the session as it was."""
        start, side = session.position, session.side
        try:
            launched = session.feed_all(tokens)
            with device_errors(self._engine.device):
                session.go_back(start, side)
                self._run(session, tokens, width)  # captures
                session.go_back(start, side)
                run = self._run(session, tokens, width)  # is replayed
                captured = on_host([run.row(index) for index in range(len(tokens))])
            reason = why_different(captured, launched)
        except DeviceError as error:
            reason = f"captured, {error}"
        finally:
            session.go_back(start, side)
        if reason:
            name = self._engine.device.name
            _log.info("%s: runs of %d tokens are launched kernel by kernel: %s", name, width, reason)
        return not reason
