"""What stands behind a Model's calls: complete requests, sequences that keep their KV, the two loops."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from embedllm.backends.base import Engine, FeedsAsync, Interrupted, Interruptible, Session
from embedllm.constraint import Constraint
from embedllm.decode import Cancel, Chunk, Generation, Statistics, arun, run
from embedllm.errors import ContextFull
from embedllm.sampling import Sampler, Sampling
from embedllm.text import StopStrings, TextCodec, TextStream
from embedllm.types import Logits

if TYPE_CHECKING:
    from concurrent.futures import Executor

_LARGE = 4096  # tokens; a sequence with room for more is not kept for a request that needs a quarter of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation to run."""

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int | None  # None: what is left of the context
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    top_count: int  # of the most probable tokens to report for each step
    special: bool = False  # special tokens are part of the text
    constraint: Constraint | None = None  # of this one reply


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


class Runner:
    """Runs requests on an engine. May be used from several threads: each running request has its own sequence."""

    def __init__(self, engine: Engine, text: TextCodec) -> None:
        self._engine: Engine | None = engine
        self._text = text
        self._context = engine.context
        self._remedy = engine.remedy
        self._idle: list[HeldSequence] = []
        self._all: WeakSet[HeldSequence] = WeakSet()
        self._lock = threading.Lock()
        self._worker: Executor | None = None  # for asynchronous callers; more would only compete for the same cores

    @property
    def engine(self) -> Engine:
        """Raises ValueError once it was closed."""
        if self._engine is None:
            raise ValueError("this model was closed")
        return self._engine

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    def check(self, request: Request) -> None:
        """Raises ValueError for a request that makes no sense, ContextFull for one that leaves no room for a token."""
        if not request.prompt:
            raise ValueError("the prompt is empty; give at least one token.")
        if len(request.prompt) >= self._context:
            raise ContextFull(
                f"the prompt has {len(request.prompt)} tokens; {self._context} can be held together with the reply. "
                f"Shorten the prompt, or {self._remedy}.",
                tokens=len(request.prompt),
                limit=self._context,
            )
        if request.max_tokens is not None and request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}; expected at least 1.")
        if request.top_count < 0:
            raise ValueError(f"logprobs is {request.top_count}; expected how many tokens to report, 0 or more.")
        StopStrings(request.stop)

    def stream(
        self, request: Request, cancel: Cancel, sequence: HeldSequence | None = None
    ) -> Generator[Chunk, None, None]:
        """Runs a request on the given sequence, or on one from the pool."""
        with self._running(request, cancel, sequence) as (used, pieces, generation):
            yield from run(generation, used.feed, pieces, cancel)

    def astream(
        self,
        request: Request,
        cancel: Cancel,
        sequence: HeldSequence | None = None,
        *,
        noting: AbstractContextManager[Callable[[Chunk], None]] | None = None,
    ) -> AsyncStream:
        """As stream(), with every feed awaited: by the session itself where it can, else in a worker thread.

        noting: entered at the start, gives what is told of each chunk, and learns how it ended.
        """
        return AsyncStream(self._running(request, cancel, sequence), cancel, self._afeed, noting)

    def new_sequence(self, capacity: int = 0, *, is_running: bool = False) -> HeldSequence:
        sequence = HeldSequence(self.engine.open(capacity))
        sequence.is_running = is_running
        with self._lock:
            self._all.add(sequence)
        return sequence

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
            worker, self._worker = self._worker, None
            running = [sequence for sequence in self._all if sequence.is_running]
            waiting = [sequence for sequence in self._all if not sequence.is_running]
            self._idle.clear()
            for sequence in running:
                sequence.end()
        for sequence in waiting:
            sequence.session.close()
        if worker is not None:
            worker.shutdown(wait=False)
        if engine is not None:
            engine.close()

    @contextmanager
    def _running(
        self, request: Request, cancel: Cancel, sequence: HeldSequence | None = None
    ) -> Iterator[tuple[HeldSequence, list[Sequence[int]], Generation]]:
        """Within the block, a sequence is the request's: it, the pieces to feed, and the rule."""
        used = self._take(request, sequence) or self.new_sequence(len(request.prompt), is_running=True)
        try:
            with used.interruptible(cancel):
                yield used, *self._begin(used, request)
        finally:
            self._give_back(used, to_pool=sequence is None)

    def _begin(self, sequence: HeldSequence, request: Request) -> tuple[list[Sequence[int]], Generation]:
        """Rewinds to what the sequence shares with the prompt; the pieces that are left, and the rule."""
        step = self.engine.chunk
        held = sequence.keep(request.prompt)
        room = self._context - len(request.prompt)
        wanted = room + 1 if request.max_tokens is None else request.max_tokens
        generation = Generation(
            sampler=Sampler(request.sampling, request.prompt, constraint=request.constraint),
            text=TextStream(self._text, special=request.special),
            stops=StopStrings(request.stop),
            stop_tokens=request.stop_tokens,
            limit=min(room, wanted),
            limit_reason="context" if wanted > room else "length",
            top_count=request.top_count,
            statistics=Statistics(prompt_tokens=len(request.prompt), cached_tokens=held),
        )
        return [request.prompt[at : at + step] for at in range(held, len(request.prompt), step)], generation

    def _take(self, request: Request, sequence: HeldSequence | None) -> HeldSequence | None:
        """The given sequence or the idle one, running; None when another request has that, or it is far too large."""
        needed = len(request.prompt) + (request.max_tokens or 0)
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

    def _afeed(self, sequence: HeldSequence, piece: Sequence[int]) -> Awaitable[Logits]:
        awaited = sequence.awaited
        return self._feed_in_worker(sequence, piece) if awaited is None else sequence.afeed(awaited, piece)

    async def _feed_in_worker(self, sequence: HeldSequence, piece: Sequence[int]) -> Logits:
        with self._lock:
            if sequence.is_ended or self._engine is None:
                raise Interrupted
            if self._worker is None:
                from concurrent.futures import ThreadPoolExecutor  # only asynchronous callers need it

                self._worker = ThreadPoolExecutor(1, thread_name_prefix="embedllm")
            worker = self._worker
        return await _in_thread(worker, sequence, piece)

    def _give_back(self, sequence: HeldSequence, *, to_pool: bool) -> None:
        """Keeps one sequence for the next call, whose prompt often begins as the last one did."""
        with self._lock:
            sequence.is_running = False
            is_kept = self._engine is not None and not (to_pool and self._idle)
            if is_kept and to_pool:
                self._idle.append(sequence)
        if not is_kept:
            sequence.session.close()


class AsyncStream:
    """The chunks of a request, for `async for`.

    No async generator: of one that is left early, the event loop runs the end some time later, and until then its
    sequence is taken. This gives it back when it is dropped.
    """

    def __init__(
        self,
        running: AbstractContextManager[tuple[HeldSequence, list[Sequence[int]], Generation]],
        cancel: Cancel,
        feed: Callable[[HeldSequence, Sequence[int]], Awaitable[Logits]],
        noting: AbstractContextManager[Callable[[Chunk], None]] | None = None,
    ) -> None:
        self._running = running
        self._cancel = cancel
        self._feed = feed
        self._noting = noting or nullcontext(lambda chunk: None)
        self._note: Callable[[Chunk], None] = lambda chunk: None
        self._held = ExitStack()
        self._chunks: AsyncGenerator[Chunk, None] | None = None

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Chunk:
        if self._chunks is None:
            used, pieces, generation = self._held.enter_context(self._running)
            self._note = self._held.enter_context(self._noting)
            feed = self._feed  # not self in the closure: in a circle it would not end when it is dropped
            self._chunks = arun(generation, lambda piece: feed(used, piece), pieces, self._cancel)
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._held.close()
            raise
        except BaseException as error:
            self._held.__exit__(type(error), error, error.__traceback__)
            raise
        self._note(chunk)
        return chunk

    async def aclose(self) -> None:
        """Ends it, as leaving the loop does."""
        if self._chunks is not None:
            await self._chunks.aclose()
        self._held.close()


async def _in_thread(worker: Executor, sequence: HeldSequence, piece: Sequence[int]) -> Logits:
    """feed() in a worker thread; when the task is cancelled meanwhile, the feed is stopped and waited for."""
    import asyncio  # a third of the import time of the whole package, and only asynchronous callers need it

    # no task: a closing event loop would cancel that too, and the feed would go on unseen
    feeding = asyncio.get_running_loop().run_in_executor(worker, sequence.feed, piece)
    try:
        return await asyncio.shield(feeding)
    except asyncio.CancelledError:
        if isinstance(sequence.session, Interruptible):
            sequence.session.interrupt()
        while not feeding.done():
            with suppress(asyncio.CancelledError):  # cancelled again; the sequence is of no use before the feed's end
                await asyncio.wait([feeding])
        feeding.exception()  # Interrupted, as was asked for
        raise
