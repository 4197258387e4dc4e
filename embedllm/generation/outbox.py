"""What a request has for its caller: the loop puts items in, a thread or a task takes them out.

Standard library only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
        self._held: list[T] = []
        self._is_new = True
        self._put = 0
        self._taken = 0
        self._is_paused = False

    @property
    def is_full(self) -> bool:
        """Whether the reader is far behind, so that the request pauses (back-pressure) until it wakes the loop."""
        if self._put - self._taken < self._most:
            return False
        self._is_paused = True  # before the second look: the reader may have taken some, and not seen it
        return self._put - self._taken >= self._most

    def put(self, item: T) -> None:
        self._put += 1
        self._held.append(item)
        if self._is_new or len(self._held) >= AHEAD // 2:
            self._is_new = False
            self.flush()

    def flush(self) -> None:
        """Gives the reader what is held; see Scheduler.step()."""
        if self._held and not self._is_whole:
            held, self._held = self._held, []
            self._send(held)

    def end(self, error: BaseException | None = None) -> None:
        """No more comes; the reader is given the rest, and then the error."""
        held, self._held = self._held, []
        self._send([*held, _End(error)])

    def _take(self, loop: EngineLoop) -> None:
        """The reader has one more."""
        self._taken += 1
        if self._is_paused and self._put - self._taken < AHEAD:
            self._is_paused = False
            loop.wake()

    def _send(self, items: Sequence[T | _End]) -> None:
        raise NotImplementedError


class Outbox(_Buffered[T]):
    """Written by the loop, read by one thread."""

    def __init__(self, *, is_whole: bool = False, on_error: Callable[[], None] = lambda: None) -> None:
        """on_error: called when an error ends it."""
        super().__init__(is_whole=is_whole)
        self._on_error = on_error
        self._queue: SimpleQueue[Sequence[T | _End]] = SimpleQueue()

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            self._on_error()
        super().end(error)

    def read(self, loop: EngineLoop) -> Iterator[T]:
        """The items, each as soon as it is there. Raises the error that ended them."""
        while True:
            for item in loop.wait(self._queue):
                if isinstance(item, _End):
                    return item.check()
                self._take(loop)
                yield item

    def _send(self, items: Sequence[T | _End]) -> None:
        self._queue.put(items)


class AsyncOutbox(_Buffered[T]):
    """As Outbox, read by one task of an event loop; made in it."""

    def __init__(self) -> None:
        import asyncio  # a third of the import time of the whole package

        super().__init__()
        self._queue: deque[T | _End] = deque()
        self._events = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None  # written in the event loop's thread only

    async def get(self, loop: EngineLoop) -> T | None:
        """The next item; None at the end. Raises the error that ended them."""
        while not self._queue:
            self._waiting = self._events.create_future()
            if self._queue:  # put meanwhile
                break
            await self._waiting
        got = self._queue.popleft()
        if isinstance(got, _End):
            self._queue.append(got)  # asked again, it says the same
            got.check()
            return None
        self._take(loop)
        return got

    def _send(self, items: Sequence[T | _End]) -> None:
        self._queue.extend(items)
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
