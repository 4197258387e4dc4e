"""Runs complete requests on sequences, synchronously and with asyncio; used by Model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from embedllm.adapters.adapter import Adapter, Adapters
from embedllm.backends.base import Engine, FeedsAll, Interrupted, Prioritized, best_parallel
from embedllm.cancel import Cancel
from embedllm.errors import ContextFull
from embedllm.generation.admission import Slot, Slots
from embedllm.generation.async_stream import AsyncStream, Feeder, Running
from embedllm.generation.beam_runner import BeamRunner, Reply
from embedllm.generation.beam_search import BeamSearch
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.generation import Generation
from embedllm.generation.loop import run
from embedllm.generation.options import Speculate
from embedllm.generation.speculation.cost_model import SpeculationStatistics
from embedllm.generation.speculation.speculator import Draft, Speculator
from embedllm.kv_cache.context_shift import ContextShift
from embedllm.kv_cache.prefix_cache import PrefixCache
from embedllm.kv_cache.sequence_pool import CachedSequence, SequencePool
from embedllm.sampling.constraint import Constraint
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler
from embedllm.text.protocols import TextCodec
from embedllm.text.stream import StopStrings, TextStream
from embedllm.tools.calls import ReplyReader

_MEASURED = frozenset({"cpu", "openvino"})  # devices where speculation was seen to pay (docs/performance.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation to run."""

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int | None  # None: what is left of the context
    min_tokens: int = 0  # before which no stop token comes
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    top_count: int  # of the most probable tokens to report for each step
    special: bool = False  # special tokens are part of the text
    kept: frozenset[int] = frozenset()  # special tokens that are, for the reader
    reader: ReplyReader | None = None  # of this one reply, where it is more than text
    constraint: Constraint | None = None  # of this one reply
    speculate: Speculate = "auto"
    shift: ContextShift | None = None  # what is dropped when the context is full; None: nothing, and the reply ends
    dropped_tokens: int = 0  # of a conversation, before this
    priority: int = 0  # lower ones are served earlier
    is_rejectable: bool = True  # by a full queue; False: part of a call that was begun
    adapter: Adapter | None = None


class Runner:
    """Runs requests on an engine. May be used from several threads: each running request has its own sequence."""

    def __init__(
        self,
        engine: Engine,
        text: TextCodec,
        *,
        draft: Runner | None = None,
        prefix_cache: PrefixCache | None = None,
        slots: Slots | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """draft: of a smaller model with the same vocabulary. slots: None: DEFAULT_SEQUENCES.

        adapters: None: the engine takes none.
        """
        self.sequences = SequencePool(engine, prefix_cache)
        self._text = text
        self._context = engine.context
        self._remedy = engine.remedy
        self.draft = draft
        self.adapters = adapters
        self._experience = SpeculationStatistics()
        self.parallel = best_parallel(engine)  # best number of concurrent requests
        self.slots = slots or Slots()
        # a device for several has them take turns by itself: a thread for each, so that no prompt keeps a step from it
        self._feeder = Feeder(max(self.parallel, self.slots.max_running) if self.parallel > 1 else 1)

    @property
    def engine(self) -> Engine:
        """Raises ValueError once it was closed."""
        return self.sequences.engine

    def check(self, request: Request) -> None:
        """Raises ValueError for a request that makes no sense, ContextFull for one that leaves no room for a token."""
        if not request.prompt:
            raise ValueError("the prompt is empty; give at least one token.")
        if request.shift is None and len(request.prompt) >= self._context:
            raise ContextFull(
                f"the prompt has {len(request.prompt)} tokens; {self._context} can be held together with the reply. "
                f"Shorten the prompt, or {self._remedy}.",
                tokens=len(request.prompt),
                limit=self._context,
            )
        if request.max_tokens is not None and request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}; expected at least 1.")
        if not 0 <= request.min_tokens <= (request.max_tokens or self._context):
            raise ValueError(f"min_tokens is {request.min_tokens}; expected 0 to max_tokens.")
        if request.top_count < 0:
            raise ValueError(f"logprobs is {request.top_count}; expected how many tokens to report, 0 or more.")
        if request.speculate not in (modes := get_args(Speculate)):
            raise ValueError(f"speculate is {request.speculate!r}; expected {', '.join(map(repr, modes))} or None.")
        if request.speculate == "draft" and self.draft is None:
            raise ValueError("speculate is 'draft', and this model has none; load it with draft=.")
        if isinstance(request.priority, bool) or not isinstance(request.priority, int):
            raise ValueError(f"priority is {request.priority!r}; expected a whole number, lower for earlier.")
        StopStrings(request.stop)

    def stream(
        self, request: Request, cancel: Cancel, sequence: CachedSequence | None = None
    ) -> Generator[Chunk, None, None]:
        """Runs a request on the given sequence, or on one from the pool, once it has a slot.

        Raises Busy when too many wait for one.
        """
        with self._entered(request, sequence) as slot:
            try:
                slot.acquire(cancel)
            except Interrupted:
                yield _cancelled_in_queue(request, slot)
                return
            with self._decoding(request, cancel, sequence, slot) as (used, pieces, generation, proposer):
                for chunk in run(generation, used, pieces, cancel, proposer):
                    if chunk.finish_reason is not None:
                        slot.release()
                    slot.mark_idle()
                    yield chunk
                    slot.reacquire(cancel)

    def astream(
        self,
        request: Request,
        cancel: Cancel,
        sequence: CachedSequence | None = None,
        *,
        noting: AbstractContextManager[Callable[[Chunk], None]] | None = None,
    ) -> AsyncStream:
        """As stream(), with every feed awaited: by the session itself where it can, else in a worker thread.

        noting: a context manager around the stream; gives a function that is called with each chunk.
        """
        return AsyncStream(
            self._entered(request, sequence),
            partial(self._decoding, request, cancel, sequence),
            cancel,
            self._feeder.feed,
            cancelled_in_queue=partial(_cancelled_in_queue, request),
            noting=noting,
        )

    def beam_search(
        self,
        request: Request,
        cancel: Cancel,
        *,
        beams: int,
        length_penalty: float,
        early_stopping: bool | Literal["never"],
    ) -> list[Reply]:
        """The best replies of a search with `beams` beams; see BeamSearch. The search has one slot."""
        room = self._context - len(request.prompt)
        limit = min(room, request.max_tokens or room)
        search = BeamSearch(beams=beams, length_penalty=length_penalty, early_stopping=early_stopping,
                            stop_tokens=request.stop_tokens, limit=limit)  # fmt: skip
        limit_reason = "length" if request.max_tokens is not None and request.max_tokens <= room else "context"
        with self._entered(request, None) as slot:
            is_served = True
            try:
                slot.acquire(cancel)
            except Interrupted:
                is_served = False
            runner = BeamRunner(search, self.sequences, request.prompt, cancel, queued_s=slot.queued_s,
                                adapter=request.adapter)  # fmt: skip
            return runner.run(limit_reason) if is_served else runner.cancelled()

    def close(self) -> None:
        """Frees the engine and every sequence that waits; a request that runs ends as cancelled at its next step."""
        self.slots.close()
        self._feeder.close()
        self.sequences.close()

    @contextmanager
    def draft_sequence(self, prompt: Sequence[int], cancel: Cancel) -> Iterator[Draft]:
        """Within the block, a sequence of this draft model proposes tokens for another model."""
        with self.sequences.borrow(prompt) as used, used.interruptible(cancel):
            yield Draft(used, prompt, context=self._context, chunk=self.engine.chunk)

    @contextmanager
    def _entered(self, request: Request, sequence: CachedSequence | None) -> Iterator[Slot]:
        """Within the block a request has the given sequence, and a slot to ask for."""
        with nullcontext() if sequence is None else self.sequences.reserve(sequence):
            slot = Slot(self.slots, request.priority, is_rejectable=request.is_rejectable)
            try:
                yield slot
            finally:
                slot.release()

    @contextmanager
    def _decoding(
        self, request: Request, cancel: Cancel, sequence: CachedSequence | None, slot: Slot
    ) -> Iterator[Running]:
        """Within the block the request has a sequence: it, the prompt chunks to feed, the generation, the proposer."""
        with ExitStack() as held:
            pooled = self.sequences.borrow(request.prompt, reply=request.max_tokens or 0)
            used = sequence or held.enter_context(pooled)
            if isinstance(used.session, Prioritized):
                used.session.priority = request.priority
            held.enter_context(used.interruptible(cancel))
            pieces, generation = self._begin(used, request, slot.queued_s)
            proposer = None
            if self._speculates(request) and isinstance(used.session, FeedsAll) and used.awaited is None:
                draft = None
                if self.draft is not None and request.speculate != "lookup":
                    draft = held.enter_context(self.draft.draft_sequence(request.prompt, cancel))
                uses_lookup = request.speculate != "draft"
                proposer = Speculator(request.prompt, self._experience, draft=draft, uses_lookup=uses_lookup,
                                       room=used.room)  # fmt: skip
            yield used, pieces, generation, proposer

    def _speculates(self, request: Request) -> bool:
        """Whether to use speculative decoding.

        How many tokens a step has depends on the clock, and rounds otherwise: so what can be repeated, by a seed or
        without chance, is only speculated on when that was asked for.
        """
        if request.speculate != "auto" or self.draft is not None:
            return request.speculate != "off"
        is_repeatable = request.sampling.is_greedy or request.sampling.seed is not None
        return not is_repeatable and self.engine.device.name in _MEASURED

    def _begin(
        self, sequence: CachedSequence, request: Request, queued_s: float
    ) -> tuple[list[Sequence[int]], Generation]:
        """Rewinds to what the sequence shares with the prompt; the pieces that are left, and the rule."""
        step = self.engine.chunk

        def note_held(held: int) -> None:
            generation.statistics = replace(generation.statistics, cached_tokens=held)

        def note_dropped(dropped: int) -> None:
            generation.dropped_tokens += dropped

        if request.shift is not None:
            step = min(step, request.shift.step)
            sequence.shift, sequence.note_dropped = request.shift, note_dropped
            sequence.keep_all()  # it is moved
        held = self.sequences.begin(sequence, request.prompt, step=step, note_held=note_held, adapter=request.adapter)
        limit, limit_reason = self._limit(request)
        generation = Generation(
            sampler=Sampler(
                request.sampling,
                request.prompt,
                constraint=request.constraint,
                stop_tokens=request.stop_tokens,
                min_tokens=request.min_tokens,
                decode=self._text.decode,
            ),
            text=TextStream(self._text, special=request.special, kept=request.kept),
            stops=StopStrings(request.stop),
            stop_tokens=request.stop_tokens,
            limit=limit,
            limit_reason=limit_reason,
            top_count=request.top_count,
            reader=request.reader,
            statistics=Statistics(
                prompt_tokens=len(request.prompt),
                cached_tokens=held,
                dropped_tokens=request.dropped_tokens,
                queued_s=queued_s,
            ),
            dropped_tokens=request.dropped_tokens,
        )
        return [request.prompt[at : at + step] for at in range(held, len(request.prompt), step)], generation

    def _limit(self, request: Request) -> tuple[int, str]:
        """How many tokens the reply may have, and what reaching that is called."""
        if request.shift is not None:
            return request.max_tokens or self._context, "length"
        room = self._context - len(request.prompt)
        wanted = room + 1 if request.max_tokens is None else request.max_tokens
        return min(room, wanted), "context" if wanted > room else "length"


def _cancelled_in_queue(request: Request, slot: Slot) -> Chunk:
    """All of a reply that was cancelled while it waited for its slot."""
    statistics = Statistics(prompt_tokens=len(request.prompt), cached_tokens=0, queued_s=slot.queued_s)
    return Chunk(text="", token=None, logprob=None, finish_reason="cancelled", statistics=statistics)
