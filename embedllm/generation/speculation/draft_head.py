"""Drafts by a head (MTP, EAGLE-3) that reads the hidden states of the target model's sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from embedllm.backends.base import Engine, Session
from embedllm.cancel import Cancel
from embedllm.generation.engine_loop import CallerThread, EngineLoop
from embedllm.generation.request import Request
from embedllm.generation.speculation.speculator import Draft
from embedllm.kv_cache.sequence import CachedSequence, ignore
from embedllm.package.file_state import LoadedFiles


class FollowingSession(Session, Protocol):
    """A session of a head."""

    def follow(self, session: Session) -> None:
        """Reads the hidden states of that session from now on."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether there are hidden states to begin with."""
        ...

    @property
    def guesses_on(self) -> bool:
        """Whether a feed makes as many guesses as were wanted."""
        ...

    def want(self, guesses: int) -> None:
        """Says how many the next feed shall make."""
        ...


class HeadEngine(Engine, Protocol):
    """A head as an engine."""

    tokens: Sequence[int] | None  # of each of its logits, where they are of fewer tokens than there are

    def open(self, capacity: int = 0) -> FollowingSession: ...


class HeadDrafter:
    """A head and its sequences: one for each request that runs."""

    def __init__(self, engine: HeadEngine, loaded: LoadedFiles, *, is_direct: bool = False) -> None:
        """loaded: what the engine has mapped. is_direct: without the thread of the device, as its target model is."""
        self._engine = engine
        self._thread = None if is_direct else EngineLoop.of(engine.device.name)
        self._loop = self._thread or CallerThread()
        self._loaded = loaded

    def can_draft_for(self, request: Request) -> bool:
        """Not where a context shift renumbers what the target model holds, and not behind images."""
        return not request.images and request.shift is None

    @contextmanager
    def draft_sequence(self, target: CachedSequence, prompt: Sequence[int], cancel: Cancel) -> Iterator[Draft]:
        """Within the block, the head drafts for what the target model's sequence reads."""
        sequence = self._loop.call(self._open)
        session = cast("FollowingSession", sequence.session)
        try:
            self._loop.call(lambda: session.follow(target.session))
            target.when_reopened = session.follow  # when it was preempted
            with sequence.interruptible(cancel):
                yield Draft(sequence, prompt, context=self._engine.context, chunk=self._engine.chunk,
                            vocabulary=self._engine.tokens, is_ready=lambda: session.is_ready,
                            want=session.want if session.guesses_on else None)  # fmt: skip
        finally:
            target.when_reopened = ignore
            self._loop.call(sequence.close)

    def _open(self) -> CachedSequence:
        return CachedSequence(self._engine, self._loop)

    def check_files(self) -> None:
        """Raises PackageError where its weights were changed on disk."""
        self._loaded.check()

    def close(self) -> None:
        """Frees the head; its requests have ended. In a process that was forked since, nothing is freed."""
        if self._thread is None or self._thread.is_alive:
            self._loop.call(self._engine.close)
