"""The chunks of a request for `async for`, and the thread that feeds sessions which cannot be awaited."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from embedllm.backends.base import Interrupted, Interruptible
from embedllm.cancel import Cancel
from embedllm.generation.admission import Slot
from embedllm.generation.chunk import Chunk
from embedllm.generation.generation import Generation
from embedllm.generation.loop import Feed, Proposer, arun
from embedllm.generation.run_in_thread import await_cancellable
from embedllm.kv_cache.sequence_pool import CachedSequence
from embedllm.types import Logits

if TYPE_CHECKING:
    from concurrent.futures import Executor

Running: TypeAlias = tuple[CachedSequence, list[Sequence[int]], Generation, Proposer | None]


class AsyncStream:
    """The chunks of a request, for `async for`.

    No async generator: of one that is left early, the event loop runs the end some time later, and until then its
    sequence is taken. This gives it back when it is dropped.
    """

    def __init__(
        self,
        entered: AbstractContextManager[Slot],
        running: Callable[[Slot], AbstractContextManager[Running]],
        cancel: Cancel,
        feed: Callable[[Feed, Callable[[], None]], Awaitable[Sequence[Logits]]],
        *,
        cancelled_in_queue: Callable[[Slot], Chunk],
        noting: AbstractContextManager[Callable[[Chunk], None]] | None = None,
    ) -> None:
        """entered: gives a slot. running: entered once it is granted. cancelled_in_queue: the chunk otherwise.

        feed: is given what to call when it is done, from any thread.
        """
        self._entered = entered
        self._running = running
        self._cancelled_in_queue = cancelled_in_queue
        self._cancel = cancel
        self._feed = feed
        self._noting = noting or nullcontext(lambda chunk: None)
        self._note: Callable[[Chunk], None] = lambda chunk: None
        self._held = ExitStack()
        self._slot: Slot | None = None
        self._chunks: AsyncGenerator[Chunk, None] | None = None

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Chunk:
        try:
            if self._chunks is None:
                self._chunks = await self._start()
            elif self._slot is not None:
                await self._slot.areacquire(self._cancel)
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._held.close()
            raise
        except BaseException as error:
            self._held.__exit__(type(error), error, error.__traceback__)
            raise
        if self._slot is not None:
            if chunk.finish_reason is not None:
                self._slot.release()
            self._slot.mark_idle()
        self._note(chunk)
        return chunk

    async def _start(self) -> AsyncGenerator[Chunk, None]:
        """The chunks, once there is a slot."""
        slot = self._held.enter_context(self._entered)
        self._note = self._held.enter_context(self._noting)
        try:
            await slot.aacquire(self._cancel)
        except Interrupted:
            return _only(self._cancelled_in_queue(slot))
        used, pieces, generation, proposer = self._held.enter_context(self._running(slot))
        self._slot = slot
        return arun(generation, used, pieces, self._cancel, proposer, feed=partial(_feed, self._feed, slot))

    async def aclose(self) -> None:
        """Ends it, as leaving the loop does."""
        if self._chunks is not None:
            await self._chunks.aclose()
        self._held.close()


async def _feed(
    feed: Callable[[Feed, Callable[[], None]], Awaitable[Sequence[Logits]]], slot: Slot, asked: Feed
) -> Sequence[Logits]:
    """Does what the loop asks for; from its end until the event loop resumes the request may be preempted."""
    # no closure over the stream, which would have to be collected then
    try:
        return await feed(asked, slot.mark_idle)
    finally:
        slot.mark_busy()


async def _only(chunk: Chunk) -> AsyncGenerator[Chunk, None]:
    yield chunk


class Feeder:
    """Feeds a sequence without blocking the event loop: by itself where it can, else in a worker thread."""

    def __init__(self, threads: int) -> None:
        """threads: concurrent feeds; on a device that runs one at a time more would compete for the same cores."""
        self._is_closed = False
        self._threads = threads
        self._worker: Executor | None = None
        self._lock = threading.Lock()

    async def feed(self, asked: Feed, done: Callable[[], None]) -> Sequence[Logits]:
        """Does what the loop asks for. done: called by the worker, when the event loop may not come to it for long."""
        sequence = asked.sequence
        assert isinstance(sequence, CachedSequence)
        if sequence.awaited is not None and not asked.is_all:
            return (await sequence.afeed(sequence.awaited, asked.tokens),)
        return await self._feed_in_worker(sequence, asked, done)

    def close(self) -> None:
        """Ends the thread after the feed that is running."""
        with self._lock:
            worker, self._worker = self._worker, None
            self._is_closed = True
        if worker is not None:
            worker.shutdown(wait=False)

    async def _feed_in_worker(
        self, sequence: CachedSequence, asked: Feed, done: Callable[[], None]
    ) -> Sequence[Logits]:
        with self._lock:
            if sequence.is_ended or self._is_closed:
                raise Interrupted
            if self._worker is None:
                from concurrent.futures import ThreadPoolExecutor  # only asynchronous callers need it

                self._worker = ThreadPoolExecutor(self._threads, thread_name_prefix="embedllm")
            worker = self._worker

        def feed() -> Sequence[Logits]:
            try:
                return asked()
            finally:
                done()

        import asyncio  # a third of the import time of the whole package, and only asynchronous callers need it

        def stop() -> None:
            if isinstance(sequence.session, Interruptible):
                sequence.session.interrupt()

        return await await_cancellable(asyncio.get_running_loop().run_in_executor(worker, feed), stop)
