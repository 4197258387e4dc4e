"""The pool of sequences: which one a request runs on, and reuse of its KV afterwards.

Called in the thread of the device's loop, if nothing else is said.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from embedllm.backends.base import Engine, KeepsStates, MovesState
from embedllm.kv_cache.background_writer import BackgroundWriter
from embedllm.kv_cache.block_cache import BLOCK, common_prefix
from embedllm.kv_cache.prefix_cache import MIN_TOKENS, PrefixCache
from embedllm.kv_cache.recurrent_prefix import last_message, movable
from embedllm.kv_cache.sequence import CachedSequence, Caller, ignore
from embedllm.package.lora.adapter import Adapter, is_same

_log = logging.getLogger("embedllm")
_MANY_EXPORTS = 32  # prompts that wait to be written to the disk: for each as many, one part more is written at a time
_LARGE = 4096  # tokens; a sequence with room for more is not kept for a request that needs a quarter of it


class SequencePool:
    """The sequences of an engine. An idle one is kept for the next request, which often has the same prefix."""

    def __init__(
        self,
        engine: Engine,
        loop: Caller,
        prefix_cache: PrefixCache | None = None,
        *,
        kv_tokens: int | None = None,
        marks: frozenset[int] = frozenset(),
    ) -> None:
        """kv_tokens: for whose KV there is memory, all sequences together; None: that is not known.

        marks: special tokens, with which chat templates begin and end messages.
        """
        self.loop = loop
        self.prefix_cache = prefix_cache  # None: no KV is shared between sequences
        self.kv_tokens = kv_tokens
        self._marks = marks
        self._engine: Engine | None = engine
        self._closing: Engine | None = None  # by the last sequence
        self._idle: CachedSequence | None = None
        self._all: dict[CachedSequence, None] = {}  # those used least recently first
        self._exports: deque[Iterator[None]] = deque()  # of prompts to the disk, a few blocks at a time
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

    @property
    def sequences(self) -> frozenset[CachedSequence]:
        """Those that hold KV, or may: running, idle and of conversations."""
        return frozenset(self._all)

    def owns(self, sequence: CachedSequence) -> bool:
        return sequence in self._all

    def new(self, capacity: int = 0, *, is_running: bool = False) -> CachedSequence:
        sequence = CachedSequence(self.engine, self.loop, capacity)
        sequence.is_running = is_running
        if self.prefix_cache is not None:
            self.prefix_cache.bind_session(sequence.session)
        sequence.set_keeps_all(self._keeps_all)
        self._all[sequence] = None
        return sequence

    @contextmanager
    def reserve(self, sequence: CachedSequence, prompt: Sequence[int] = ()) -> Iterator[None]:
        """Within the block a conversation's sequence is the caller's. Raises ValueError when a request has it.

        prompt: of the request that shall run.
        """
        if sequence.is_running:
            raise ValueError("this conversation has a reply under way; finish, close or cancel it first")
        sequence.is_running = True
        try:
            yield
        finally:
            self.give_back(sequence, prompt, to_pool=False)

    @contextmanager
    def borrow(self, prompt: Sequence[int], *, reply: int = 0) -> Iterator[CachedSequence]:
        """Within the block, the idle sequence or a new one is the caller's; from any thread.

        reply: tokens that follow the prompt.
        """
        used = self.loop.call(lambda: self.take(prompt, reply))
        try:
            yield used
        finally:
            self.loop.call(lambda: self.give_back(used, prompt, to_pool=True))

    def take(self, prompt: Sequence[int], reply: int = 0, *, is_new: bool = False) -> CachedSequence:
        """The idle sequence when it suits, else a new one, until it is given back. is_new: a new one in any case."""
        if not is_new and (used := self._idle) is not None:
            self._idle = None
            if used.session.capacity <= max(_LARGE, 4 * (len(prompt) + reply)):
                used.is_running = True
                return used
            self.drop(used)
        return self.new(len(prompt), is_running=True)

    def shared(
        self,
        prompt: Sequence[int],
        adapter: Adapter | None,
        reader: CachedSequence,
        reader_prompt: Sequence[int],
        *,
        own: CachedSequence | None,
    ) -> int:
        """How many tokens of a prompt begin() will take from a sequence once it has read its own; 0: too few to wait.

        own: the sequence that the prompt is for. Where prompts are read together, waiting for one costs more.
        """
        is_recurrent = movable(reader.session) is not None
        if self.prefix_cache is None or not (is_recurrent or isinstance(reader.session, MovesState)):
            return 0
        if not is_same(reader.adapter, adapter) or len(prompt) > self.engine.context:
            return 0
        shared = min(common_prefix(reader_prompt, prompt), len(prompt) - 1)
        cached_count = max(len(reader.tokens), 0 if own is None else own.shares(prompt, adapter))
        least = MIN_TOKENS if reader.prompt_batches is None else max(MIN_TOKENS, self.engine.chunk // 4)
        if shared - cached_count < least:
            return 0
        if is_recurrent and not any(0 <= shared - at < MIN_TOKENS for at in reader.landmarks):
            is_near = any(0 < at - shared < MIN_TOKENS for at in reader.landmarks)  # a small piece costs a whole step
            reader.set_landmarks([*reader.landmarks, shared - shared % MIN_TOKENS if is_near else shared])
        return shared

    def begin(self, sequence: CachedSequence, prompt: Sequence[int], adapter: Adapter | None = None) -> int:
        """Truncates to the common prefix, restores cached KV, returns the number of cached tokens.

        The last token is always fed, for its logits. adapter: that they are computed with.
        """
        own = common_prefix(sequence.tokens, prompt) if is_same(sequence.adapter, adapter) else 0
        shared = sequence.back(min(own, len(prompt) - 1))
        cache = self.prefix_cache
        spans, prefix, known = [], None, own
        if cache is not None and len(prompt) <= self.engine.context:  # else part of it is dropped on the way
            others = [one for one in self._all if one is not sequence]
            if isinstance(sequence.session, MovesState):
                spans = cache.find(prompt, shared, others, adapter)
            elif (session := movable(sequence.session)) is not None:
                prefix, others_know = cache.find_recurrent(session, prompt, shared, others, adapter)
                known = max(known, others_know)
        if len(sequence.tokens) > shared:
            self._truncate(sequence, shared)
        if not is_same(sequence.adapter, adapter):
            sequence.adapt(adapter)
        sequence.restore(prompt, spans)
        if prefix is not None:
            sequence.restore_prefix(prompt, prefix)
        cached_count = len(sequence.tokens)
        if isinstance(sequence.session, KeepsStates):
            sequence.set_landmarks(self._landmarks(prompt, cached_count, known))
        if cache is not None:
            cache.count(cached_count, len(prompt))
        return cached_count

    def _landmarks(self, prompt: Sequence[int], cached_count: int, known: int) -> list[int]:
        """Where the states of a recurrent model are kept, as others are likely to go on from there.

        known: tokens that others have in common with the prompt: a third one may part from it where they do, and
        another question may take the place of the last one.
        """
        parting = [known, last_message(prompt, self._marks)]
        if self._keeps_all:  # for the disk, which takes states of whole blocks
            parting = [at - at % BLOCK for at in (*parting, len(prompt) - 1)]
        return [at for at in parting if cached_count + MIN_TOKENS <= at < len(prompt)]

    def give_back(self, sequence: CachedSequence, prompt: Sequence[int] = (), *, to_pool: bool) -> None:
        """Keeps one sequence for the next call, whose prompt often begins as the last one did.

        prompt: of the request that ran, whose KV goes to the disk where there is a folder for it.
        """
        sequence.shift, sequence.note_dropped = None, ignore
        sequence.is_running = False
        sequence.forget_evicted()
        cache = self.prefix_cache
        # the model was closed, or what held it, now or before
        is_gone = self._engine is None or sequence.is_dropped or sequence not in self._all
        if is_gone or (sequence.has_failed and to_pool):
            self._discard(sequence)
            return
        if sequence.has_failed:
            sequence.free()
        del self._all[sequence]
        self._all[sequence] = None  # the last one that was used
        sequence.set_keeps_all(self._keeps_all)
        if cache is not None and cache.folder is not None and prompt:
            self._exports.append(cache.exports(sequence, list(prompt), self._writing, sequence.adapter))
        if to_pool and self._idle is None:
            self._idle = sequence
        elif to_pool:
            self.drop(sequence)

    def drop(self, sequence: CachedSequence) -> None:
        """Frees a sequence; KV that no other sequence has goes into the prefix cache."""
        if sequence.is_running:  # freed when its request gives it back
            sequence.is_dropped = True
            return
        if self._engine is not None and sequence in self._all:
            self._truncate(sequence, 0)
        self._discard(sequence)

    def make_room(self, tokens: int, own: CachedSequence | None = None) -> bool:
        """Whether there is memory for the KV of that many tokens of a request, beside what is held.

        Frees KV that no request has for it: the idle sequence, then conversations, the least recently used first. Their
        next turn takes it from the prefix cache, or computes it again. own: the sequence that the tokens will be in.
        """
        if self.kv_tokens is None:
            return True
        limit = self.kv_tokens - max(0, tokens - (own.session.capacity if own is not None else 0))
        if self._count_reserved_tokens() <= limit:
            return True
        if self._idle is not None:
            idle, self._idle = self._idle, None
            self.drop(idle)
        for sequence in [one for one in self._all if one.tokens and not one.is_running and one is not own]:
            if self._count_reserved_tokens() <= limit:
                break
            try:
                self._truncate(sequence, 0)
                sequence.free()
            except Exception as error:  # noqa: BLE001  # of the device: those that run go on
                _log.info("the KV of a conversation could not be freed: %s", error)
        return self._count_reserved_tokens() <= limit

    def kv_usage(self, sequences: int) -> float:
        """The share of the KV cache that is in use, 0 to 1; from any thread.

        sequences: that run at most. Where the memory for KV is not known, that many whole contexts count as all of it.
        """
        if self._engine is None:
            return 0.0
        limit = self.kv_tokens or sequences * self._engine.context
        return min(1.0, sum(len(one.tokens) for one in [*self._all]) / limit)

    @property
    def untidy(self) -> int:
        """Requests of which something can wait; see tidy()."""
        return len(self._exports)

    def tidy(self) -> bool:
        """Does a little of what can wait, more where much does: KV to the disk. False: there was nothing."""
        if not self._exports:
            return False
        for _ in range(1 + len(self._exports) // _MANY_EXPORTS):
            try:
                next(self._exports[0])
            except StopIteration:
                self._exports.popleft()
            except Exception as error:  # noqa: BLE001  # of the device or the disk: requests go on
                self._exports.popleft()
                _log.info("part of the prefix cache was not written: %s", error)
        return True

    def finish(self) -> None:
        """Does all that can wait, and waits until it is on the disk."""
        while self.tidy():
            pass
        self._writing.wait()

    def release(self) -> None:
        """Frees the sequence that waits in the pool, and the prefix cache in memory."""
        self.finish()
        if self._idle is not None:
            idle, self._idle = self._idle, None
            self._discard(idle)
        if self.prefix_cache is not None:
            self.prefix_cache.clear()

    def close(self) -> None:
        """Frees every sequence, whoever keeps it, and the engine: after the requests that run, which end now."""
        self.finish()
        self._closing, self._engine, self._idle = self._engine or self._closing, None, None
        for sequence in [*self._all]:
            sequence.end()
            if not sequence.is_running:
                self._discard(sequence)
        if self.prefix_cache is not None:
            self.prefix_cache.clear()
        self._close_engine()

    @property
    def _keeps_all(self) -> bool:
        """Whether sequences keep what no window sees any more: blocks on disk have all of it."""
        return self.prefix_cache is not None and self.prefix_cache.folder is not None

    def _count_reserved_tokens(self) -> int:
        """Tokens whose KV there is memory taken for."""
        return sum(sequence.session.capacity for sequence in self._all)

    def _discard(self, sequence: CachedSequence) -> None:
        self._all.pop(sequence, None)
        sequence.close()
        self._close_engine()

    def _close_engine(self) -> None:
        """After the last of its sessions."""
        if self._closing is not None and not self._all:
            engine, self._closing = self._closing, None
            engine.close()

    def _truncate(self, sequence: CachedSequence, position: int) -> None:
        """Rewinds; KV that no other sequence has goes into the prefix cache, where it can be copied."""
        if self.prefix_cache is not None:
            is_recurrent = isinstance(sequence.session, KeepsStates)  # others may have its KV, and not its states
            others = [] if is_recurrent else [one for one in self._all if one is not sequence]
            shared = (one.shares(sequence.tokens, sequence.adapter) for one in others)
            try:
                self.prefix_cache.insert(sequence, max(position, max(shared, default=0)))
            except Exception as error:  # noqa: BLE001  # of the device, or no memory: it is computed again then
                _log.info("part of the prefix cache was not kept: %s", error)
        sequence.forget_from(position)
