"""Sequences and the tokens that they hold: which one a request runs on, and what becomes of it afterwards."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakSet

from embedllm.backends.base import Engine, FeedsAll, FeedsAsync, Interrupted, Interruptible, Session
from embedllm.decode import Cancel
from embedllm.types import Logits

_LARGE = 4096  # tokens; a sequence with room for more is not kept for a request that needs a quarter of it


class HeldSequence:
    """A session and the tokens that it holds."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.awaited = session if isinstance(session, FeedsAsync) else None  # asked once, not at every step
        self.tokens: list[int] = []
        self.is_running = False  # a request has it; closed by nobody else then
        self.is_ended = False  # by the end of the model

    def feed(self, tokens: Sequence[int]) -> Logits:
        if self.is_ended:
            raise Interrupted
        logits = self.session.feed(tokens)
        self.tokens += tokens
        return logits

    def feed_all(self, tokens: Sequence[int]) -> list[Logits]:
        """As feed, in a session that FeedsAll; the logits after each token."""
        from embedllm.rows import Row  # numpy

        if self.is_ended:
            raise Interrupted
        assert isinstance(self.session, FeedsAll)
        rows = self.session.feed_all(tokens)
        self.tokens += tokens
        return [Row(row) for row in rows]  # views

    def rewind_by(self, count: int) -> None:
        """Forgets the last tokens."""
        if not self.is_ended:
            self.session.rewind(len(self.tokens) - count)
            del self.tokens[len(self.tokens) - count :]

    async def afeed(self, awaited: FeedsAsync, tokens: Sequence[int]) -> Logits:
        if self.is_ended:
            raise Interrupted
        logits = await awaited.afeed(tokens)
        self.tokens += tokens
        return logits

    def end(self) -> None:
        """Stops the feed that is running, and every later one; from any thread."""
        self.is_ended = True
        if isinstance(self.session, Interruptible):
            self.session.interrupt()

    def shared(self, prompt: Sequence[int]) -> int:
        """How many tokens the sequence and the prompt have in common at their start."""
        pairs = enumerate(zip(self.tokens, prompt, strict=False))
        return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(self.tokens), len(prompt)))

    def keep(self, prompt: Sequence[int]) -> int:
        """Forgets all that the prompt does not begin with; how many of its tokens are held then.

        The last one is always fed again, for its logits.
        """
        held = min(self.shared(prompt), len(prompt) - 1)
        self.session.rewind(held)
        del self.tokens[held:]
        return held

    def interruptible(self, cancel: Cancel) -> AbstractContextManager[None]:
        """Within the block, `cancel` stops a feed that is running."""
        return cancel.watching(self.session.interrupt) if isinstance(self.session, Interruptible) else nullcontext()


class Sequences:
    """The sequences of an engine. One that a request is done with waits for the next, which often begins the same.

    May be used from several threads.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._idle: list[HeldSequence] = []
        self._all: WeakSet[HeldSequence] = WeakSet()
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        """Raises ValueError once it was closed."""
        if self._engine is None:
            raise ValueError("this model was closed")
        return self._engine

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    def new(self, capacity: int = 0, *, is_running: bool = False) -> HeldSequence:
        sequence = HeldSequence(self.engine.open(capacity))
        sequence.is_running = is_running
        with self._lock:
            self._all.add(sequence)
        return sequence

    def take(self, needed: int, sequence: HeldSequence | None) -> HeldSequence | None:
        """The given sequence or the idle one, running; None when there is none that suits.

        needed: tokens. Raises ValueError when another request has the given one.
        """
        surplus: HeldSequence | None = None
        with self._lock:
            if sequence is not None and sequence.is_running:
                raise ValueError("this conversation has a reply under way; finish, close or cancel it first")
            used = sequence or (self._idle.pop() if self._idle else None)
            if sequence is None and used is not None and used.session.capacity > max(_LARGE, 4 * needed):
                used, surplus = None, used
            if used is not None:
                used.is_running = True
        if surplus is not None:
            surplus.session.close()
        return used

    def give_back(self, sequence: HeldSequence, *, to_pool: bool) -> None:
        """Keeps one sequence for the next call, whose prompt often begins as the last one did."""
        with self._lock:
            sequence.is_running = False
            is_kept = self._engine is not None and not (to_pool and self._idle)
            if is_kept and to_pool:
                self._idle.append(sequence)
        if not is_kept:
            sequence.session.close()

    def release(self) -> None:
        """Frees the sequence that waits in the pool."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        for sequence in idle:
            sequence.session.close()

    def close(self) -> None:
        """Frees the engine and every sequence that waits, whoever keeps it.

        A request that runs ends as cancelled at its next step, and its sequence with it.
        """
        with self._lock:
            engine, self._engine = self._engine, None
            running = [sequence for sequence in self._all if sequence.is_running]
            waiting = [sequence for sequence in self._all if not sequence.is_running]
            self._idle.clear()
            for sequence in running:
                sequence.end()
        for sequence in waiting:
            sequence.session.close()
        if engine is not None:
            engine.close()
