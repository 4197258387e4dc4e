"""Two engines for one sequence: prompts are read where that is fast, tokens made where that is fast.

The KV goes from one to the other as float32 or float16 arrays, when the second one is first needed. Only the one that
reads has to give its state away; the memory of two packed copies of the weights is the price.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from embedllm.backends.base import Device, Engine, Forgets, Interruptible, MovesState, Session, TakesAdapters
from embedllm.backends.checks import check_rewind
from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.package.lora.adapter import Adapter

LEAST = 32  # tokens; fewer are fed where tokens are made: handing over costs more (docs/performance.md)


class SplitEngine:
    """Disaggregated prefill/decode: the prompt on one engine, decoding on another, of the same package."""

    def __init__(self, reads: Engine, makes: Engine, device: Device) -> None:
        self.device = device
        self.reads = reads
        self.makes = makes
        self.chunk = reads.chunk
        smaller = min(reads, makes, key=lambda engine: engine.context)
        self.context, self.remedy = smaller.context, smaller.remedy

    def open(self, capacity: int = 0) -> SplitSession:
        return SplitSession(self, capacity)

    def close(self) -> None:
        self.reads.close()
        self.makes.close()


class SplitSession:
    """One sequence, held by one of the two sessions or by both: each holds a beginning of it."""

    def __init__(self, engine: SplitEngine, capacity: int) -> None:
        self.position = 0
        # of these engines, sessions that move their state: the registry pairs no others
        self._reads = cast("_Movable", engine.reads.open())
        self._makes = cast("_Movable", engine.makes.open(capacity))
        for session in (self._reads, self._makes):
            if isinstance(session, Forgets):
                session.keeps_all = True  # the other one gets all of it

    @property
    def capacity(self) -> int:
        return self._makes.capacity

    def feed(self, tokens: Sequence[int]) -> Logits:
        if len(tokens) >= LEAST:
            now, other = self._reads, self._makes
        else:
            now, other = self._makes, self._reads
        _catch_up(now, other)
        logits = now.feed(tokens)
        self.position += len(tokens)
        if now is self._makes and other.position:
            other.rewind(0)  # the KV is held once
        return logits

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        for session in (self._reads, self._makes):
            session.rewind(min(position, session.position))
        self.position = position

    def interrupt(self, stop: bool = True) -> None:
        for session in (self._reads, self._makes):
            if isinstance(session, Interruptible):
                session.interrupt(stop)

    def adapt(self, adapter: Adapter | None) -> None:
        for session in (self._reads, self._makes):
            if isinstance(session, TakesAdapters):
                session.adapt(adapter)

    def export_state(self, start: int, stop: int) -> KeyValues:
        ahead = max(self._reads, self._makes, key=lambda session: session.position)
        return ahead.export_state(start, stop)

    def import_state(self, state: KeyValues) -> None:
        _catch_up(self._makes, self._reads)
        self._makes.import_state(state)
        self._reads.rewind(0)
        self.position = self._makes.position

    def close(self) -> None:
        self._reads.close()
        self._makes.close()


class _Movable(Session, MovesState, Protocol):
    """What both halves must be."""


def _catch_up(session: _Movable, other: _Movable) -> None:
    if other.position > session.position:
        session.import_state(other.export_state(session.position, other.position))
