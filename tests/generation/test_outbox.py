"""What goes from the engine loop to a reader: in order, all of it, and with no wake lost; no engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import pytest

from embedllm.generation.outbox import AHEAD, AsyncOutbox, Outbox
from tests.support.fakes import taking_turns

T = TypeVar("T")
WAIT_S = 120  # a test that waits this long has failed


class Waker:
    """In place of a loop: counts how often it is woken."""

    is_alive = True

    def __init__(self, is_awake: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self.is_awake = is_awake

    def wake(self) -> None:
        self.count += 1
        self.is_awake()

    def wait(self, queue: SimpleQueue[T], *, iterates: bool = False) -> T:
        return queue.get(timeout=WAIT_S)


def taken(outbox: Outbox[int], loop: Waker) -> list[int]:
    return list(outbox.read(loop))  # type: ignore[arg-type]  # a part of one


def test_items_come_in_order_and_then_the_error() -> None:
    outbox: Outbox[int] = Outbox()
    for item in range(5):
        outbox.put(item)
    outbox.end(KeyError("gone"))
    found: list[int] = []

    def read() -> None:
        for item in outbox.read(Waker()):  # type: ignore[arg-type]  # a part of one
            found.append(item)

    with pytest.raises(KeyError, match="gone"):
        read()
    assert found == list(range(5))


def test_the_first_item_is_there_at_once_and_later_ones_when_they_are_flushed_or_many() -> None:
    outbox: Outbox[int] = Outbox()
    outbox.put(0)
    assert outbox._queue.qsize() == 1
    outbox.put(1)
    outbox.put(2)
    assert outbox._queue.qsize() == 1
    outbox.flush()
    assert outbox._queue.qsize() == 2
    for item in range(3, 3 + AHEAD // 2):
        outbox.put(item)
    assert outbox._queue.qsize() == 3
    outbox.put(3 + AHEAD // 2)
    outbox.end()
    assert outbox._queue.qsize() == 4  # the rest and the end wake its reader once
    assert taken(outbox, Waker()) == list(range(4 + AHEAD // 2))


def test_who_is_far_behind_pauses_the_request_and_wakes_it_once() -> None:
    loop = Waker()
    outbox: Outbox[int] = Outbox()
    for item in range(AHEAD + 4):  # the tokens of one speculative step come together
        outbox.put(item)
    assert outbox.is_full
    outbox.flush()
    reader = outbox.read(loop)  # type: ignore[arg-type]  # a part of one
    assert [next(reader) for _ in range(4)] == [0, 1, 2, 3]
    assert (outbox.is_full, loop.count) == (True, 0)
    assert [next(reader) for _ in range(9)] == list(range(4, 13))
    assert (outbox.is_full, loop.count) == (False, 1)


def test_a_reader_that_wants_the_whole_gets_it_at_the_end_and_is_never_behind() -> None:
    outbox: Outbox[int] = Outbox(is_whole=True)
    for item in range(3 * AHEAD):
        outbox.put(item)
    assert (outbox.is_full, outbox._queue.qsize()) == (False, 0)
    outbox.end()
    assert taken(outbox, Waker()) == list(range(3 * AHEAD))


def test_no_wake_is_lost_between_a_task_and_the_loop_nor_between_a_paused_loop_and_its_task() -> None:
    async def main() -> None:
        awake = threading.Event()
        loop = Waker(awake.set)
        outbox: AsyncOutbox[int] = AsyncOutbox()

        def write() -> None:
            for item in range(3000):
                while outbox.is_full:
                    assert awake.wait(WAIT_S)
                    awake.clear()
                outbox.put(item)
                outbox.flush()
            outbox.end()

        thread = threading.Thread(target=write)
        thread.start()
        found: list[int] = []
        while (item := await asyncio.wait_for(outbox.get(loop), WAIT_S)) is not None:  # type: ignore[arg-type]
            found.append(item)
        thread.join(WAIT_S)
        assert found == list(range(3000))
        assert await outbox.get(loop) is None  # type: ignore[arg-type]  # asked again, it says the same

    with taking_turns():
        asyncio.run(main())


def test_a_task_is_woken_though_it_began_to_wait_while_the_item_before_was_announced() -> None:
    """The loop has put an item and looks for who waits; the task takes the item meanwhile, and waits for the next."""

    async def main() -> None:
        loop = Waker()
        outbox: AsyncOutbox[int] = AsyncOutbox()
        tasks: list[asyncio.Task[int | None]] = []
        events = asyncio.get_running_loop()
        announce = events.call_soon_threadsafe

        def late(callback: Callable[..., object], *arguments: object) -> object:
            # what the loop's thread does here comes after all that the task does now
            held.append((callback, arguments))
            return None

        held: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        tasks.append(asyncio.create_task(outbox.get(loop)))  # type: ignore[arg-type]  # a part of one
        await asyncio.sleep(0)
        events.call_soon_threadsafe = late  # type: ignore[method-assign,assignment]
        outbox.put(1)
        events.call_soon_threadsafe = announce  # type: ignore[method-assign]
        ((callback, arguments),) = held
        outbox._queue._items.popleft()  # taken by another turn of the task
        announce(callback, *arguments)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        outbox.put(2)
        outbox.flush()
        assert await asyncio.wait_for(tasks[0], WAIT_S) == 2

    asyncio.run(main())


def test_an_item_for_an_event_loop_that_was_closed_is_dropped() -> None:
    async def main() -> AsyncOutbox[int]:
        outbox: AsyncOutbox[int] = AsyncOutbox()
        task = asyncio.create_task(outbox.get(Waker()))  # type: ignore[arg-type]  # a part of one
        await asyncio.sleep(0)
        task.cancel()
        return outbox

    outbox = asyncio.run(main())
    outbox.put(1)
    outbox.end()
