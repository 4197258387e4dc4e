"""What a request has for its caller: the loop puts items in, a thread or a task takes them out.

Standard library only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from embedllm.generation.engine_loop import EngineLoop

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
AHEAD = 32  # items that nobody has taken yet, after which a request pauses; half of them wake its reader


class _Buffered(Generic[T]):
    """Items on their way to a reader, who is woken for several at once when they come quickly."""

    def __init__(self, *, is_whole: bool = False) -> None:
        """is_whole: the reader wants all at the end only, and is not woken before."""
        self._most = math.inf if is_whole else AHEAD  # items that nobody has taken yet
        self._is_whole = is_whole
        self._pending: list[T] = []
        self._is_new = True
        self._put_items = 0
        self._taken_items = 0
        self._is_paused = False

    @property
    def is_full(self) -> bool:
        """Whether the reader is far behind, so that the request pauses (back-pressure) until it wakes the loop."""
        if self._put_items - self._taken_items < self._most:
            return False
        self._is_paused = True  # before the second look: the reader may have taken some, and not seen it
        return self._put_items - self._taken_items >= self._most

    def put(self, item: T) -> None:
        self._put_items += 1
        self._pending.append(item)
        if self._is_new or len(self._pending) >= AHEAD // 2:
            self._is_new = False
            self.flush()

    def flush(self) -> None:
        """Gives the reader what is held; see Scheduler.step()."""
        if self._pending and not self._is_whole:
            pending, self._pending = self._pending, []
            self._send(pending)

    def end(self, error: BaseException | None = None) -> None:
        """No more comes; the reader is given the rest, and then the error."""
        pending, self._pending = self._pending, []
        self._send([*pending, _End(error)])

    def _take(self, loop: EngineLoop) -> None:
        """The reader has one more."""
        self._taken_items += 1
        if self._is_paused and self._put_items - self._taken_items < AHEAD:
            self._is_paused = False
            loop.wake()

    def _send(self, items: Sequence[T | _End]) -> None:
        raise NotImplementedError


class Outbox(_Buffered[T]):
    """Written by the loop, read by one thread."""

    def __init__(
        self,
        *,
        is_whole: bool = False,
        on_error: Callable[[], None] = lambda: None,
        queue: SimpleQueue[tuple[Outbox[T], Sequence[T | _End]]] | None = None,
    ) -> None:
        """on_error: called when an error ends it. queue: of several that read_all() reads; else its own."""
        super().__init__(is_whole=is_whole)
        self._on_error = on_error
        self._queue = queue or SimpleQueue()

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            self._on_error()
        super().end(error)

    def read(self, loop: EngineLoop) -> Iterator[T]:
        """The items, each as soon as it is there. Raises the error that ended them."""
        for _, item in self.read_all([self], loop):
            yield item

    @classmethod
    def several(cls, count: int) -> list[Outbox[T]]:
        """As many, which read_all() reads together."""
        queue: SimpleQueue[tuple[Outbox[T], Sequence[T | _End]]] = SimpleQueue()
        return [cls(queue=queue) for _ in range(count)]

    @staticmethod
    def read_all(outboxes: Sequence[Outbox[T]], loop: EngineLoop) -> Iterator[tuple[int, T]]:
        """The items of all, each as soon as it is there, with the place of its outbox. Raises the first error."""
        places = {outbox: place for place, outbox in enumerate(outboxes)}
        while places:
            outbox, items = loop.wait(outboxes[0]._queue, iterates=True)  # of all of them
            for item in items:
                if isinstance(item, _End):
                    item.check()
                    del places[outbox]
                else:
                    outbox._take(loop)
                    yield places[outbox], item

    def _send(self, items: Sequence[T | _End]) -> None:
        self._queue.put((self, items))


class AsyncOutbox(_Buffered[T]):
    """As Outbox, read by one task of an event loop; made in it."""

    def __init__(self, queue: _AsyncQueue[tuple[AsyncOutbox[T], T | _End]] | None = None) -> None:
        """queue: of several that read_all() reads; else its own."""
        super().__init__()
        self._queue = queue or _AsyncQueue()

    async def get(self, loop: EngineLoop) -> T | None:
        """The next item; None at the end. Raises the error that ended them."""
        _, item = await self._queue.get()
        if isinstance(item, _End):
            self._send([item])  # asked again, it says the same
            item.check()
            return None
        self._take(loop)
        return item

    @classmethod
    def several(cls, count: int) -> list[AsyncOutbox[T]]:
        """As many, which read_all() reads together."""
        queue: _AsyncQueue[tuple[AsyncOutbox[T], T | _End]] = _AsyncQueue()
        return [cls(queue) for _ in range(count)]

    @staticmethod
    async def read_all(outboxes: Sequence[AsyncOutbox[T]], loop: EngineLoop) -> AsyncGenerator[tuple[int, T], None]:
        """The items of all, each as soon as it is there, with the place of its outbox. Raises the first error."""
        places = {outbox: place for place, outbox in enumerate(outboxes)}
        while places:
            outbox, item = await outboxes[0]._queue.get()  # of all of them
            if isinstance(item, _End):
                item.check()
                del places[outbox]
            else:
                outbox._take(loop)
                yield places[outbox], item

    def _send(self, items: Sequence[T | _End]) -> None:
        self._queue.put([(self, item) for item in items])


class _AsyncQueue(Generic[T]):
    """Written by any thread, read by one task; made in its event loop."""

    def __init__(self) -> None:
        import asyncio  # a third of the import time of the whole package

        self._items: deque[T] = deque()
        self._events = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None  # written in the event loop's thread only

    async def get(self) -> T:
        while not self._items:
            self._waiting = self._events.create_future()
            if self._items:  # put meanwhile
                break
            await self._waiting
        return self._items.popleft()

    def put(self, items: Sequence[T]) -> None:
        self._items.extend(items)
        if self._waiting is not None:
            with suppress(RuntimeError):  # the event loop was closed, and its task with it
                self._events.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


@dataclass(slots=True)
class _End:
    """The last entry."""

    error: BaseException | None

    def check(self) -> None:
        if self.error is not None:
            raise self.error
