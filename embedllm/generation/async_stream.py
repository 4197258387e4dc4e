"""The chunks of a request for `async for`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Protocol

from embedllm.generation.chunk import Chunk
from embedllm.generation.engine_loop import EngineLoop
from embedllm.generation.loop import Feed
from embedllm.kv_cache.sequence import CachedSequence

if TYPE_CHECKING:
    from embedllm.generation.outbox import AsyncOutbox
    from embedllm.types import Logits


class Source(Protocol):
    """Where chunks come from."""

    async def next(self) -> Chunk | None:
        """None at the end."""
        ...

    async def aclose(self) -> None:
        """Ends it."""
        ...

    def close(self) -> None:
        """Ends it when nobody can await that."""
        ...


class AsyncStream:
    """The chunks of a request, for `async for`. Nothing is begun before the first is asked for.

    No async generator: of one that is left early, the event loop runs the end some time later, and until then the
    request goes on. This ends it when it is dropped.
    """

    def __init__(
        self,
        start: Callable[[], Source],
        *,
        noting: AbstractContextManager[Callable[[Chunk], None]] | None = None,
    ) -> None:
        """start: queues the request."""
        self._start = start
        self._noting = noting or nullcontext(lambda chunk: None)
        self._note: Callable[[Chunk], None] = lambda chunk: None
        self._resources = ExitStack()
        self._source: Source | None = None
        self._is_over = False
        self._is_awaited = False

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Chunk:
        """Raises ValueError while another task waits for a chunk, which would then wait for ever."""
        if self._is_over:
            raise StopAsyncIteration
        if self._is_awaited:
            raise ValueError("another task waits for the next chunk of this stream; read a stream in one task.")
        self._is_awaited = True
        try:
            if self._source is None:
                self._note = self._resources.enter_context(self._noting)
                self._source = self._start()
                self._resources.callback(self._source.close)
            chunk = await self._source.next()
        except BaseException as error:
            self._is_over = True
            self._resources.__exit__(type(error), error, error.__traceback__)
            raise
        finally:
            self._is_awaited = False
        if chunk is None:
            self._is_over = True
            self._resources.close()
            raise StopAsyncIteration
        self._note(chunk)
        return chunk

    async def aclose(self) -> None:
        """Ends it, as leaving the loop does."""
        self._is_over = True
        if self._source is not None:
            await self._source.aclose()
        self._resources.close()


class TicketSource:
    """Chunks that the engine loop puts into an outbox."""

    def __init__(self, loop: EngineLoop, outbox: AsyncOutbox[Chunk], resources: ExitStack) -> None:
        """resources: what ends the request."""
        self._loop = loop
        self._outbox = outbox
        self._resources = resources

    async def next(self) -> Chunk | None:
        return await self._outbox.get(self._loop)

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        self._resources.close()


class DirectSource:
    """Chunks that are computed as they are asked for, in a browser's own event loop."""

    def __init__(self, chunks: AsyncGenerator[Chunk, None], resources: ExitStack) -> None:
        """resources: the sequence."""
        self._chunks = chunks
        self._resources = resources

    async def next(self) -> Chunk | None:
        return await anext(self._chunks, None)

    async def aclose(self) -> None:
        await self._chunks.aclose()
        self._resources.close()

    def close(self) -> None:
        self._resources.close()


async def awaited_feed(feed: Feed) -> Sequence[Logits]:
    """Does what the loop asks for; without blocking the event loop where the session can be awaited."""
    sequence = feed.sequence
    assert isinstance(sequence, CachedSequence)
    if sequence.awaited is not None and not feed.is_all:
        return (await sequence.afeed(sequence.awaited, feed.tokens),)
    return feed()
