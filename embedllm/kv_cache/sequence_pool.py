"""The pool of sequences: which one a request runs on, and reuse of its KV afterwards."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from embedllm.adapters.adapter import Adapter, is_same
from embedllm.backends.base import Engine, MovesState
from embedllm.kv_cache.background_writer import BackgroundWriter
from embedllm.kv_cache.block_cache import common_prefix
from embedllm.kv_cache.prefix_cache import CachedSpan, PrefixCache
from embedllm.kv_cache.sequence import CachedSequence, ignore

_LARGE = 4096  # tokens; a sequence with room for more is not kept for a request that needs a quarter of it


class SequencePool:
    """The sequences of an engine. An idle one is kept for the next request, which often has the same prefix.

    May be used from several threads.
    """

    def __init__(self, engine: Engine, prefix_cache: PrefixCache | None = None) -> None:
        self.prefix_cache = prefix_cache  # None: no KV is shared between sequences
        self._engine: Engine | None = engine
        self._idle: list[CachedSequence] = []
        self._all: WeakSet[CachedSequence] = WeakSet()
        self._lock = threading.RLock()  # a stream that was left may be collected in the thread that has it
        self._writing = BackgroundWriter()

    @property
    def engine(self) -> Engine:
        """Raises ValueError once it was closed."""
        if self._engine is None:
            raise ValueError("this model was closed")
        return self._engine

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    def new(self, capacity: int = 0, *, is_running: bool = False) -> CachedSequence:
        sequence = CachedSequence(self.engine.open(capacity))
        sequence.is_running = is_running
        if self.prefix_cache is not None:
            self.prefix_cache.bind_session(sequence.session)
        sequence.set_keeps_all(self._keeps_all)
        with self._lock:
            self._all.add(sequence)
        return sequence

    @contextmanager
    def reserve(self, sequence: CachedSequence) -> Iterator[None]:
        """Within the block a conversation's sequence is the caller's. Raises ValueError when a request has it."""
        with self._lock:
            if sequence.is_running:
                raise ValueError("this conversation has a reply under way; finish, close or cancel it first")
            sequence.is_running = True
        try:
            yield
        finally:
            self.give_back(sequence, to_pool=False)

    @contextmanager
    def borrow(self, prompt: Sequence[int], *, reply: int = 0) -> Iterator[CachedSequence]:
        """Within the block, the idle sequence or a new one is the caller's. reply: tokens that follow the prompt."""
        used = self.take(len(prompt) + reply) or self.new(len(prompt), is_running=True)
        try:
            yield used
        finally:
            self.give_back(used, to_pool=True)

    def take(self, needed: int) -> CachedSequence | None:
        """The idle sequence, running; None when there is none that suits. needed: tokens."""
        surplus: CachedSequence | None = None
        with self._lock:
            used = self._idle.pop() if self._idle else None
            if used is not None and used.session.capacity > max(_LARGE, 4 * needed):
                used, surplus = None, used
            if used is not None:
                used.is_running = True
        if surplus is not None:
            self.drop(surplus)
        return used

    def begin(
        self,
        sequence: CachedSequence,
        prompt: Sequence[int],
        *,
        step: int,
        note_held: Callable[[int], None],
        adapter: Adapter | None = None,
    ) -> int:
        """How many tokens of a prompt need not be fed. They are made ready in the first feed, in its thread.

        step: tokens per feed when cached KV is gone meanwhile. note_held: called with the number of cached tokens then.
        The last token is always fed, for its logits. adapter: that they are computed with.
        """
        own = common_prefix(sequence.tokens, prompt) if is_same(sequence.adapter, adapter) else 0
        shared = sequence.back(min(own, len(prompt) - 1))
        sources: list[CachedSpan] = []
        fits = len(prompt) <= self.engine.context  # of one that does not, part is dropped on the way
        if self.prefix_cache is not None and fits and isinstance(sequence.session, MovesState):
            sources = self.prefix_cache.find(prompt, shared, self._others(sequence), adapter)
        planned = sources[-1].stop if sources else shared
        sequence.prompt = prompt
        if planned == len(sequence.tokens) and not sources and is_same(sequence.adapter, adapter):
            return planned

        def make_ready() -> None:
            self._truncate(sequence, shared)
            if not is_same(sequence.adapter, adapter):
                sequence.adapt(adapter)
            held = sequence.restore(sources, step) if sources else shared
            if held < planned:
                note_held(held)

        sequence.before_feed = make_ready
        return planned

    def give_back(self, sequence: CachedSequence, *, to_pool: bool) -> None:
        """Keeps one sequence for the next call, whose prompt often begins as the last one did."""
        prompt, sequence.prompt, sequence.before_feed = sequence.prompt, (), None
        sequence.shift, sequence.note_dropped = None, ignore
        sequence.set_keeps_all(self._keeps_all)
        adapter = sequence.adapter
        with self._lock:
            sequence.is_running = False
            is_kept = self._engine is not None and not (to_pool and self._idle)
            if is_kept and to_pool:
                self._idle.append(sequence)
            if (
                (prefix_cache := self.prefix_cache) is not None
                and prefix_cache.folder is not None
                and self._engine is not None
            ):
                self._writing.add(lambda: prefix_cache.write_to_disk(sequence, prompt, adapter))
        is_stream_closed = isinstance(sys.exception(), GeneratorExit) and self._engine is not None
        if not is_kept and is_stream_closed and sys.platform != "emscripten":
            # maybe by the garbage collector: then this thread may have what drop() waits for, or lead a run of others;
            # a browser has no other threads, and a pool that is closed no runs
            self._writing.add(lambda: self.drop(sequence))
        elif not is_kept:
            self.drop(sequence)

    def drop(self, sequence: CachedSequence) -> None:
        """Frees a sequence; KV that no other sequence has goes into the prefix cache."""
        if self._engine is not None:
            self._truncate(sequence, 0)
        sequence.close()

    def release(self) -> None:
        """Frees the sequence that waits in the pool, and the prefix cache in memory."""
        self._writing.wait()
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        for sequence in idle:
            sequence.close()
        if self.prefix_cache is not None:
            self.prefix_cache.clear()

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
        self._writing.wait()
        for sequence in waiting:
            sequence.close()
        if self.prefix_cache is not None:
            self.prefix_cache.clear()
        if engine is not None:
            engine.close()

    @property
    def _keeps_all(self) -> bool:
        """Whether sequences keep what no window sees any more: blocks on disk have all of it."""
        return self.prefix_cache is not None and self.prefix_cache.folder is not None

    def _others(self, sequence: CachedSequence) -> list[CachedSequence]:
        with self._lock:
            return [other for other in self._all if other is not sequence and not other.is_ended]

    def _truncate(self, sequence: CachedSequence, position: int) -> None:
        """Rewinds; KV that no other sequence has goes into the prefix cache."""
        others = self._others(sequence)
        with sequence.lock:
            if self.prefix_cache is not None:
                held = max((other.shares(sequence.tokens, sequence.adapter) for other in others), default=0)
                self.prefix_cache.insert(sequence, max(position, held))
            sequence.forget_from(position)
