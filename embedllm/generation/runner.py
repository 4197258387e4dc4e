"""Runs complete requests on sequences, synchronously and with asyncio; used by Model."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from embedllm.backends.base import Engine, FeedsAll, Interrupted
from embedllm.backends.images import images_of, images_unsupported, without_images
from embedllm.cancel import Cancel
from embedllm.errors import DeviceError, DeviceUnavailable, out_of_memory, with_advice
from embedllm.generation.async_stream import AsyncStream, DirectSource, TicketSource, awaited_feed
from embedllm.generation.beam_runner import BeamRunner, Reply
from embedllm.generation.beam_search import BeamSearch
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.engine_loop import CallerThread, EngineLoop, Ticket
from embedllm.generation.generation import Generation
from embedllm.generation.job import Job, Steps
from embedllm.generation.loop import Proposer, arun, decode_steps, run
from embedllm.generation.outbox import AsyncOutbox, Outbox
from embedllm.generation.request import Request, check_request
from embedllm.generation.run_in_thread import OrderedThread
from embedllm.generation.scheduler import MAX_RUNNING, MAX_WAITING, Scheduler
from embedllm.generation.speculation.cost_model import SpeculationStatistics
from embedllm.generation.speculation.speculator import Draft, Drafter, Speculator
from embedllm.kv_cache.prefix_cache import PrefixCache
from embedllm.kv_cache.sequence import CachedSequence
from embedllm.kv_cache.sequence_handle import SequenceHandle
from embedllm.kv_cache.sequence_pool import SequencePool
from embedllm.package.file_state import LoadedFiles
from embedllm.package.lora.adapter import Adapters
from embedllm.sampling.sampler import Sampler
from embedllm.text.protocols import TextCodec
from embedllm.text.stream import StopStrings, TextStream

T = TypeVar("T")
_REQUESTS = OrderedThread()  # of all models, as Python runs one thread at a time
Running: TypeAlias = tuple[CachedSequence, list[Sequence[int]], Generation, Proposer | None]


class Runner:
    """Runs requests on an engine, in the thread of its device's loop. May be used from any thread."""

    def __init__(
        self,
        engine: Engine,
        text: TextCodec,
        *,
        draft: Drafter | None = None,
        prefix_cache: PrefixCache | None = None,
        adapters: Adapters | None = None,
        max_running: int = MAX_RUNNING,
        max_waiting: int = MAX_WAITING,
        kv_tokens: int | None = None,
        is_direct: bool = False,
        speculates: bool = False,
        loaded: LoadedFiles | None = None,
    ) -> None:
        """draft: of a smaller model with the same vocabulary, or a head of this one.

        adapters: None: the engine takes none.
        max_running, max_waiting: see Scheduler. kv_tokens: see SequencePool. is_direct: without the thread: whoever
        calls computes, in one thread at a time, and several calls take turns (in a browser). speculates: by default,
        where a reply cannot be repeated anyway. loaded: what the engine has mapped.
        """
        self._loop = None if is_direct else EngineLoop.of(engine.device.name)
        self._in_loop = self._loop or CallerThread()
        self.sequences = SequencePool(
            engine, self._in_loop, prefix_cache, kv_tokens=kv_tokens, marks=text.special_tokens
        )
        self.scheduler = Scheduler(self.sequences, max_running=max_running, max_waiting=max_waiting)
        self._text = text
        self._context = engine.context
        self._remedy = engine.remedy
        self.draft = draft
        self._loaded = loaded
        self.adapters = adapters
        self._speculates_by_default = speculates
        self._experience = SpeculationStatistics()
        if self._loop is not None:
            # a model that is dropped is closed, too, where its runtime is used: also one whose load is interrupted here
            self._loop.when_dropped(self, partial(_close, self._loop, self.scheduler, self.sequences))
            self._loop.host(self.scheduler)

    @property
    def engine(self) -> Engine:
        """Raises ValueError once it was closed."""
        return self.sequences.engine

    @property
    def is_direct(self) -> bool:
        """Whether it computes in the thread that calls."""
        return self._loop is None

    def call(self, work: Callable[[], T]) -> T:
        """What `work` gives, done in the thread that the engine and its sessions are used in.

        Raises what it raises, DeviceError without memory, and in a process that was forked after the model was loaded.
        """
        try:
            return self._in_loop.call(work)
        except MemoryError as error:
            raise out_of_memory(error) from error

    async def make(self, request: Callable[[], T]) -> T:
        """What `request` makes, beside the event loop, in the order of the calls; where there are no threads, in it."""
        return request() if self._loop is None else await _REQUESTS.run(request)

    def check_prompt(self, request: Request) -> None:
        """Raises ValueError for a request that makes no sense, ContextFull for one that leaves no room for a token."""
        check_request(request, context=self._context, remedy=self._remedy)

    def check(self, request: Request) -> None:
        """Raises what check_prompt() raises, ValueError and DeviceUnavailable for what this model cannot do.

        PackageError where the weights were changed on disk.
        """
        self.check_files()
        self.check_prompt(request)
        if request.images:
            self._take_images(request)
        if request.speculate == "draft" and self.draft is None:
            raise ValueError("speculate is 'draft', and this model has none; load it with draft=.")
        if self.is_direct and request.timeout_s != math.inf:
            raise ValueError("timeout needs the thread of the model, and this one has none; use cancel=.")

    def _take_images(self, request: Request) -> None:
        """Lets a request's images be fed, as long as it is there.

        Raises DeviceUnavailable where the device takes none, ValueError for what they cannot be combined with.
        """
        if (images := images_of(self.engine)) is None:
            device, (reason, remedy) = self.engine.device.name, images_unsupported(self.engine)
            raise DeviceUnavailable(f"'{device}' takes no images: {reason}; {remedy}.", [(device, reason, remedy)])
        if request.shift is not None:
            raise ValueError(
                "the context shift moves KV that images are part of; leave it out for prompts with images."
            )
        images.add(request.images)

    def check_files(self) -> None:
        """Raises PackageError where the weights of the model, or of its draft model, were changed on disk."""
        if self._loaded is not None:
            self._loaded.check()
        if self.draft is not None:
            self.draft.check_files()

    def stream(
        self, request: Request, cancel: Cancel, sequence: SequenceHandle | CachedSequence | None = None
    ) -> Generator[Chunk, None, None]:
        """Runs a request on the given sequence, or on one from the pool, once it is admitted.

        A few chunks are computed before they are asked for. Raises Busy when too many requests wait.
        """
        if self._loop is None:
            try:
                with self._decoding(request, cancel, sequence) as (used, pieces, generation, proposer):
                    yield from run(generation, used, pieces, cancel, proposer)
            except (MemoryError, DeviceError) as error:
                advised = with_advice(error)
                raise advised from advised.__cause__
            return
        outbox: Outbox[Chunk] = Outbox()
        with cancel.passed_on() as own, self._submit(request, own, outbox, sequence):
            yield from outbox.read(self._loop)

    def run_all(self, requests: Sequence[Request], cancel: Cancel) -> Iterator[list[Chunk]]:
        """The chunks of each of several requests, in their order, which run together; when one fails, all end."""
        if self._loop is None:
            yield from (list(self.stream(request, cancel)) for request in requests)
            return
        with cancel.passed_on() as own:
            outboxes: list[Outbox[Chunk]] = [Outbox(is_whole=True, on_error=own.cancel) for _ in requests]
            with self._submit_all(requests, own, outboxes):
                for outbox in outboxes:
                    yield list(outbox.read(self._loop))

    def stream_all(self, requests: Sequence[Request], cancel: Cancel) -> Generator[tuple[int, Chunk], None, None]:
        """The chunks of several requests that run together, each with the place of its request, as they come.

        All are queued at once; when one fails, all end.
        """
        if self._loop is None:
            for place, request in enumerate(requests):
                yield from ((place, chunk) for chunk in self.stream(request, cancel))
            return
        outboxes: list[Outbox[Chunk]] = Outbox.several(len(requests))
        with cancel.passed_on() as own, self._submit_all(requests, own, outboxes):
            yield from Outbox.read_all(outboxes, self._loop)

    async def astream_all(self, requests: Sequence[Request], cancel: Cancel) -> AsyncGenerator[tuple[int, Chunk], None]:
        """As stream_all(), for `async for`, without blocking the event loop."""
        if self._loop is None:
            for place, request in enumerate(requests):
                async with aclosing(self.astream(request, cancel)) as chunks:
                    async for chunk in chunks:
                        yield place, chunk
            return
        outboxes: list[AsyncOutbox[Chunk]] = AsyncOutbox.several(len(requests))
        with cancel.passed_on() as own, self._submit_all(requests, own, outboxes):
            async for place, chunk in AsyncOutbox.read_all(outboxes, self._loop):
                yield place, chunk

    @contextmanager
    def _submit_all(
        self, requests: Sequence[Request], own: Cancel, outboxes: Sequence[Outbox[Chunk] | AsyncOutbox[Chunk]]
    ) -> Iterator[None]:
        """Queues requests, which end with the block; own: their switch."""
        with ExitStack() as tickets:
            for request, outbox in zip(requests, outboxes, strict=True):
                tickets.enter_context(self._submit(request, own, outbox))
            yield

    def astream(
        self,
        request: Request,
        cancel: Cancel,
        sequence: SequenceHandle | CachedSequence | None = None,
        *,
        noting: AbstractContextManager[Callable[[Chunk], None]] | None = None,
    ) -> AsyncStream:
        """As stream(), for `async for`, without blocking the event loop.

        noting: a context manager around the stream; gives a function that is called with each chunk.
        """
        loop = self._loop
        if loop is None:

            def start() -> DirectSource:
                resources = ExitStack()
                used, pieces, rule, proposer = resources.enter_context(self._decoding(request, cancel, sequence))
                return DirectSource(arun(rule, used, pieces, cancel, proposer, feed=awaited_feed), resources)

            return AsyncStream(start, noting=noting)

        def submit() -> TicketSource:
            outbox: AsyncOutbox[Chunk] = AsyncOutbox()
            resources = ExitStack()
            own = resources.enter_context(cancel.passed_on())
            resources.enter_context(self._submit(request, own, outbox, sequence))
            return TicketSource(loop, outbox, resources)

        return AsyncStream(submit, noting=noting)

    def beam_search(
        self,
        request: Request,
        cancel: Cancel,
        *,
        beams: int,
        length_penalty: float,
        early_stopping: bool | Literal["never"],
    ) -> list[Reply]:
        """The best replies of a search with `beams` beams, which is one request; see BeamSearch."""
        room = self._context - len(request.prompt)
        limit = min(room, request.max_tokens or room)
        search = BeamSearch(beams=beams, length_penalty=length_penalty, early_stopping=early_stopping,
                            stop_tokens=request.stop_tokens, limit=limit)  # fmt: skip
        limit_reason = "length" if request.max_tokens is not None and request.max_tokens <= room else "context"
        self._check_memory(beams, len(request.prompt) + 1)
        runner = BeamRunner(search, self.sequences, request.prompt, adapter=request.adapter)
        if self._loop is None:
            return runner.run_directly(limit_reason, cancel)
        outbox: Outbox[list[Reply]] = Outbox()

        def begin(job: Job) -> Steps:
            return runner.steps(limit_reason, job.cancel, queued_s=job.queued_s)

        with cancel.passed_on() as own:
            job = Job(begin=begin, outbox=outbox, cancel=own, unstarted=lambda job: tuple(runner.ended(job.cancel)),
                      prompt=request.prompt, tokens=len(request.prompt) * beams, adapter=request.adapter,
                      priority=request.priority, timeout_s=request.timeout_s, is_rejectable=request.is_rejectable
                      )  # fmt: skip
            with self._enqueue(job):
                (replies,) = outbox.read(self._loop)
                return list(replies)

    def _check_memory(self, beams: int, tokens: int) -> None:
        """Raises ValueError for more beams than there is memory for."""
        kv_tokens = self.sequences.kv_tokens
        if kv_tokens is not None and beams > 1 and beams * tokens > kv_tokens:
            raise ValueError(
                f"{beams} beams of {tokens} tokens each need the KV of {beams * tokens} tokens; the memory that was "
                f"free when the model was loaded takes {kv_tokens}. Ask for fewer beams, or shorten the prompt."
            )

    def close(self) -> None:
        """Frees the engine and every sequence; a request that runs ends as cancelled at its next step.

        In a process that was forked since, nothing is freed: it waits for nobody.
        """
        if self._loop is None:
            self.sequences.close()
        elif self._loop.is_alive:
            self.scheduler.cancel_all()
            self._loop.call(partial(_close, self._loop, self.scheduler, self.sequences))

    def _submit(
        self,
        request: Request,
        own: Cancel,
        outbox: Outbox[Chunk] | AsyncOutbox[Chunk],
        sequence: SequenceHandle | CachedSequence | None = None,
    ) -> Ticket:
        """Queues a request; own: its own switch."""

        def begin(job: Job) -> Steps:
            return self._steps(request, job, sequence)

        return self._enqueue(
            Job(begin=begin, outbox=outbox, cancel=own, unstarted=partial(_cancelled_in_queue, request),
                prompt=request.prompt, tokens=len(request.prompt), adapter=request.adapter,
                priority=request.priority, timeout_s=request.timeout_s, is_rejectable=request.is_rejectable,
                sequence=sequence.sequence if isinstance(sequence, SequenceHandle) else sequence)
        )  # fmt: skip

    def _enqueue(self, job: Job) -> Ticket:
        assert self._loop is not None
        self._loop.check_process()
        _ = self.engine  # raises when it was closed
        ticket = Ticket(self._loop, job.cancel)
        job.cancel.when_cancelled(self._loop.wake)
        self._loop.post(partial(self.scheduler.submit, job))
        return ticket

    def _steps(self, request: Request, job: Job, sequence: SequenceHandle | CachedSequence | None) -> Steps:
        """All that a request asks for and gives, in the loop's thread."""
        generation: Generation | None = None
        try:
            with self._decoding(request, job.cancel, sequence, job.queued_s) as (used, pieces, generation, proposer):
                yield from decode_steps(generation, used, pieces, job.cancel, proposer)
        except Interrupted:
            yield _cancelled_in_queue(request, job) if generation is None else _end_chunk(generation.cancelled(), job)

    def can_draft_for(self, request: Request) -> bool:
        """Whether this draft model reads such prompts."""
        return not request.images

    @contextmanager
    def draft_sequence(self, target: CachedSequence, prompt: Sequence[int], cancel: Cancel) -> Iterator[Draft]:
        """Within the block, a sequence of this draft model proposes tokens for another model, whatever its sequence."""
        with self.sequences.borrow(prompt) as used, used.interruptible(cancel):
            yield Draft(used, prompt, context=self._context, chunk=self.engine.chunk)

    @contextmanager
    def _decoding(
        self, request: Request, cancel: Cancel, sequence: SequenceHandle | CachedSequence | None, queued_s: float = 0.0
    ) -> Iterator[Running]:
        """Within the block the request has a sequence: it, the prompt chunks to feed, the generation, the proposer."""
        self._in_loop.check_process()
        with ExitStack() as resources:
            if sequence is None:
                used = resources.enter_context(self.sequences.borrow(request.prompt, reply=request.max_tokens or 0))
            else:
                used = sequence.open() if isinstance(sequence, SequenceHandle) else sequence
                resources.enter_context(self.sequences.reserve(used, request.prompt))
            resources.enter_context(used.interruptible(cancel))
            text = without_images(request.prompt)  # not by request.images: ids of a prompt may be given alone
            pieces, generation = self._begin(used, request, text, queued_s)
            proposer = None
            if self._speculates(request) and isinstance(used.session, FeedsAll) and used.awaited is None:
                draft = None
                if self.draft is not None and request.speculate != "lookup" and self.draft.can_draft_for(request):
                    draft = resources.enter_context(self.draft.draft_sequence(used, request.prompt, cancel))
                uses_lookup = request.speculate != "draft"
                proposer = Speculator(text, self._experience, draft=draft, uses_lookup=uses_lookup,
                                      room=used.room, together=partial(self._stepping_with, used))  # fmt: skip
            else:
                used.foresee(generation.sampler.draws)
                resources.callback(used.foresee, None)
            yield used, pieces, generation, proposer

    def _stepping_with(self, sequence: CachedSequence) -> int:
        """How many requests step in one run with that sequence's."""
        return max(1, self.scheduler.active()) if sequence.batches is not None else 1

    def _speculates(self, request: Request) -> bool:
        """Whether to use speculative decoding.

        How many tokens a step has depends on the clock, and rounds otherwise: so what can be repeated, by a seed or
        without chance, is only speculated on when that was asked for.
        """
        if request.speculate != "auto" or self.draft is not None:
            return request.speculate != "off"
        is_repeatable = request.sampling.is_greedy or request.sampling.seed is not None
        return not is_repeatable and self._speculates_by_default

    def _begin(
        self, sequence: CachedSequence, request: Request, text: Sequence[int], queued_s: float
    ) -> tuple[list[Sequence[int]], Generation]:
        """Truncates the sequence to its common prefix with the prompt, and restores cached KV.

        Returns the remaining prompt chunks and the Generation.
        text: the prompt without ids of images.
        """

        def note_dropped(dropped: int) -> None:
            generation.dropped_tokens += dropped

        if request.shift is not None:
            sequence.shift, sequence.note_dropped = request.shift, note_dropped
            sequence.keep_all()  # it is moved
        began_s = time.perf_counter()
        cached_tokens = self.sequences.begin(sequence, request.prompt, request.adapter)
        limit, limit_reason = self._limit(request)
        generation = Generation(
            sampler=Sampler(
                request.sampling,
                text,
                constraint=request.constraint,
                stop_tokens=request.stop_tokens,
                min_tokens=request.min_tokens,
                decode=self._text.decode,
            ),
            text=TextStream(
                self._text,
                special=request.special,
                mark_tokens=request.mark_tokens,
                before=text if request.is_continuation else (),
                is_whole=request.constraint is not None,
            ),
            stops=StopStrings(request.stop),
            stop_tokens=request.stop_tokens,
            limit=limit,
            limit_reason=limit_reason,
            top_count=request.top_count,
            reader=request.reader,
            device=self.engine.device.name,
            statistics=Statistics(
                prompt_tokens=len(request.prompt),
                cached_tokens=cached_tokens,
                prefill_s=time.perf_counter() - began_s,
                dropped_tokens=request.dropped_tokens,
                queued_s=queued_s,
            ),
            dropped_tokens=request.dropped_tokens,
        )
        step = len(request.prompt) if self._loop is not None else self.engine.chunk  # the scheduler parts them itself
        if request.shift is not None:
            step = min(step, self.engine.chunk, request.shift.step)
        return sequence.pieces(request.prompt, cached_tokens, step), generation

    def _limit(self, request: Request) -> tuple[int, str]:
        """How many tokens the reply may have, and what reaching that is called."""
        if request.shift is not None:
            return request.max_tokens or self._context, "length"
        room = self._context - len(request.prompt)
        requested = room + 1 if request.max_tokens is None else request.max_tokens
        return min(room, requested), "context" if requested > room else "length"


def _close(loop: EngineLoop, scheduler: Scheduler, sequences: SequencePool) -> None:
    """In the loop's thread. Twice is fine."""
    scheduler.end_all()
    loop.leave(scheduler)
    sequences.close()


def _end_chunk(chunk: Chunk, job: Job) -> Chunk:
    """The last chunk of a request that was ended from outside: by its caller, or by its time."""
    is_late = time.monotonic() >= job.deadline_s and not job.cancel.cancelled
    return replace(chunk, finish_reason="timeout") if is_late else chunk


def _cancelled_in_queue(request: Request, job: Job) -> Chunk:
    """All of a reply that was ended before it was admitted."""
    waited_s = time.monotonic() - job.submitted_s
    statistics = Statistics(prompt_tokens=len(request.prompt), cached_tokens=0, queued_s=waited_s,
                            dropped_tokens=request.dropped_tokens)  # fmt: skip
    chunk = Chunk(text="", token=None, logprob=None, finish_reason="cancelled", statistics=statistics)
    return _end_chunk(chunk, job)
