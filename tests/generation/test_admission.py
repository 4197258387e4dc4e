"""Who runs, who waits and who is refused; and that nobody waits for ever: on fake sessions, without a runtime."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
from embedllm.generation.admission import DEFAULT_SEQUENCES, Slot, Slots, check_concurrency, make_slots
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends.base import Interrupted, MemoryEstimate
from embedllm.cancel import Cancel
from embedllm.errors import Busy
from embedllm.generation import admission
from embedllm.generation.chunk import Chunk
from embedllm.generation.runner import Request, Runner
from embedllm.sampling.options import Sampling
from tests.support.fakes import Bytes, FakeEngine, FakeSession

WAIT_S = 120  # a test that waits this long has failed
_T = TypeVar("_T")


def runner(most: int = 1, waiting: int = 8, engine: FakeEngine | None = None) -> Runner:
    return Runner(engine or FakeEngine(), Bytes(), slots=Slots(most, waiting))


def request(*prompt: int, priority: int = 0) -> Request:
    return Request(prompt=prompt, sampling=Sampling(temperature=0), max_tokens=3, stop=(), stop_tokens=frozenset(),
                   top_count=0, priority=priority)  # fmt: skip


def alone(*prompt: int) -> list[int | None]:
    return [chunk.token for chunk in runner().stream(request(*prompt), Cancel())]


def in_time(work: Callable[[], _T]) -> _T:
    """What it gives, in a thread, so that a deadlock fails the test."""
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised below
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(WAIT_S)


def until(is_true: Callable[[], bool]) -> None:
    """Until other threads have come so far."""
    waited = threading.Event()
    for _ in range(WAIT_S * 1000):
        if is_true():
            return
        waited.wait(0.001)
    raise AssertionError("others did not come so far")


async def read(chunks: AsyncIterator[Chunk]) -> list[int | None]:
    return [chunk.token async for chunk in chunks]


@contextmanager
def occupied(slots: Slots, count: int = 1) -> Iterator[list[Slot]]:
    """Within the block, other threads' requests have this many slots."""
    held = [Slot(slots) for _ in range(count)]
    with ThreadPoolExecutor(1) as thread:
        for slot in held:
            thread.submit(slot.acquire, Cancel()).result(WAIT_S)
    try:
        yield held
    finally:
        for slot in held:
            slot.release()


# --- the order


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 60), st.integers(-4, 4)), min_size=1, max_size=8))
def test_they_are_served_by_priority_and_the_time_that_they_have_waited(calls: list[tuple[float, int]]) -> None:
    clock = Clock()
    slots, served = Slots(1, 8, clock=clock), list[int]()

    def wait(which: int, slot: Slot) -> None:
        slot.acquire(Cancel())
        served.append(which)
        slot.release()

    calls = sorted(calls, key=lambda call: call[0])
    with ThreadPoolExecutor(len(calls)) as threads, occupied(slots):
        for which, (came, priority) in enumerate(calls):
            clock.now = came
            threads.submit(wait, which, Slot(slots, priority))
            until(lambda which=which: slots.waiting == which + 1)
    ranks = [came + 10 * priority for came, priority in calls]
    assert served == sorted(range(len(calls)), key=lambda which: ranks[which])
    assert (slots.running, slots.waiting) == (0, 0)


def test_no_more_run_at_once_than_there_are_places() -> None:
    running, most, lock = set[int](), list[int](), threading.Lock()

    def during(session: FakeSession) -> None:
        with lock:
            running.add(id(session))
            most.append(len(running))

    engine = FakeEngine(during_feed=during)
    one = runner(3, 99, engine)
    meeting = threading.Barrier(3)  # is passed only where three run at once

    def reply(which: int) -> list[int | None]:
        found: list[int | None] = []
        for chunk in one.stream(request(1, which), Cancel()):
            if not found and which < 3:
                meeting.wait(WAIT_S)
            found.append(chunk.token)
        with lock:
            running.clear()
        return found

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(reply, range(12))) == [alone(1, which) for which in range(12)]
    assert max(most) <= 3
    assert (one.slots.running, one.slots.waiting) == (0, 0)


# --- a full queue


def test_a_full_queue_is_said_at_once_with_its_numbers_and_the_next_call_works() -> None:
    one = runner(1, 1)
    with ThreadPoolExecutor(1) as threads, occupied(one.slots):
        waiting = threads.submit(lambda: list(one.stream(request(1), Cancel())))
        until(lambda: one.slots.waiting == 1)
        with pytest.raises(Busy, match="1 requests run and 1 wait") as found:
            next(one.stream(request(2), Cancel()))
        assert (found.value.running, found.value.waiting) == (1, 1)
        with pytest.raises(Busy):
            asyncio.run(read(one.astream(request(2), Cancel())))
    assert waiting.result(WAIT_S)[0].statistics.queued_s > 0
    (*_, last) = one.stream(request(2), Cancel())
    assert last.statistics.queued_s == 0
    assert (one.slots.running, one.slots.waiting) == (0, 0)


def test_without_a_queue_a_call_beyond_the_places_is_refused() -> None:
    one = runner(2, 0)
    with occupied(one.slots, 2), pytest.raises(Busy, match="2 requests run and 0 wait"):
        next(one.stream(request(2), Cancel()))


# --- giving up


def test_a_call_that_is_cancelled_while_it_waits_ends_at_once() -> None:
    one, cancel = runner(), Cancel()
    with ThreadPoolExecutor(1) as threads, occupied(one.slots):
        waiting = threads.submit(lambda: list(one.stream(request(1, 2), cancel)))
        until(lambda: one.slots.waiting == 1)
        cancel.cancel()
        (only,) = waiting.result(WAIT_S)
        assert (only.finish_reason, only.text, only.token) == ("cancelled", "", None)
        assert (only.statistics.prompt_tokens, only.statistics.tokens) == (2, 0)
        assert only.statistics.queued_s > 0
        assert one.slots.waiting == 0
        assert [chunk.finish_reason for chunk in one.stream(request(1), cancel)] == ["cancelled"]
    assert one.slots.running == 0


@pytest.mark.parametrize("how", ["switch", "task"])
def test_a_task_that_is_cancelled_while_it_waits_leaves_the_queue(how: str) -> None:
    one, cancel = runner(), Cancel()

    async def main() -> None:
        with occupied(one.slots):
            task = asyncio.create_task(read(one.astream(request(1), cancel)))
            while not one.slots.waiting:
                await asyncio.sleep(0)
            if how == "switch":
                threading.Thread(target=cancel.cancel).start()
                assert await asyncio.wait_for(task, WAIT_S) == [None]
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert one.slots.waiting == 0
        assert await asyncio.wait_for(read(one.astream(request(1), Cancel())), WAIT_S) == alone(1)

    asyncio.run(main())
    assert (one.slots.running, one.slots.waiting) == (0, 0)


def test_closing_an_asynchronous_stream_that_waits_ends_it() -> None:
    one = runner()

    async def main() -> list[int | None]:
        with occupied(one.slots):
            stream = one.astream(request(1), Cancel())
            task = asyncio.create_task(read(stream))
            while not one.slots.waiting:
                await asyncio.sleep(0)
            await stream.aclose()
            assert one.slots.waiting == 0
            return await asyncio.wait_for(task, WAIT_S)

    assert asyncio.run(main()) == [None]
    assert one.slots.running == 0


def test_streams_that_never_begin_or_are_left_early_hold_no_place() -> None:
    one = runner()
    streams = [one.stream(request(1), Cancel()), one.astream(request(1), Cancel())]  # made, and kept
    left = one.stream(request(2), Cancel())
    next(left)
    assert one.slots.running == 1
    left.close()
    assert one.slots.running == 0

    async def leave() -> None:
        async for _ in one.astream(request(2), Cancel()):
            break
        gc.collect()
        assert one.slots.running == 0

    asyncio.run(leave())
    assert in_time(lambda: [chunk.token for chunk in one.stream(request(3), Cancel())]) == alone(3)
    del streams


def test_streams_that_the_garbage_collector_ends_wait_for_nothing_that_its_thread_has() -> None:
    """It may come at any line, in a thread that has a lock, or leads the run that others wait for."""
    engine = FakeEngine()
    one = runner(3, engine=engine)
    streams = [one.stream(request(which), Cancel()) for which in range(3)]
    assert [next(stream).token is not None for stream in streams] == [True] * 3
    list(streams.pop())  # its sequence waits for the next call: the others have to be closed
    streams.append(streams)  # type: ignore[arg-type]  # a cycle, as an exception and its frame are one
    del streams

    def collect() -> None:
        with ExitStack() as held:
            for sequence in [*one.sequences._all]:
                held.enter_context(sequence.lock)
            held.enter_context(one.sequences._lock)
            gc.collect()

    in_time(collect)
    one.sequences._writing.wait()
    assert [session.closed for session in engine.sessions] == [True, True, False]
    assert one.slots.running == 0


def test_a_reply_that_is_over_has_no_place_though_its_stream_is_kept() -> None:
    one = runner()
    stream = one.stream(request(1), Cancel())
    assert [next(stream).finish_reason for _ in range(3)][-1] == "length"
    assert one.slots.running == 0
    assert list(stream) == []


def test_closing_ends_those_who_wait_in_threads_and_tasks() -> None:
    one = runner()

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads, occupied(one.slots):
            waiting = threads.submit(lambda: [chunk.finish_reason for chunk in one.stream(request(1), Cancel())])
            task = asyncio.create_task(read(one.astream(request(1), Cancel())))
            while one.slots.waiting < 2:
                await asyncio.sleep(0)
            one.close()
            assert await asyncio.wait_for(task, WAIT_S) == [None]
            assert waiting.result(WAIT_S) == ["cancelled"]

    asyncio.run(main())
    with pytest.raises(ValueError, match="this model was closed"):
        next(one.stream(request(1), Cancel()))


# --- nobody waits for one who waits for him


def test_a_call_within_the_loop_over_a_stream_has_its_place() -> None:
    one = runner()

    def nested() -> list[list[int | None]]:
        found: list[list[int | None]] = [[]]
        for chunk in one.stream(request(1), Cancel()):
            found[0].append(chunk.token)
            found.append([inner.token for inner in one.stream(request(2), Cancel())])
        return found

    assert in_time(nested) == [alone(1), *[alone(2)] * 3]
    assert one.slots.running == 0


def test_streams_that_are_read_in_turn_share_one_place() -> None:
    one = runner()
    streams = [one.stream(request(1, which), Cancel()) for which in range(3)]
    found = in_time(lambda: list(zip(*streams, strict=True)))
    assert [[chunk.token for chunk in each] for each in zip(*found, strict=True)] == [alone(1, w) for w in range(3)]
    assert one.slots.running == 0


def test_a_task_that_calls_within_its_own_stream_has_its_place() -> None:
    one = runner()

    async def main() -> list[list[int | None]]:
        return [await read(one.astream(request(2), Cancel())) async for _ in one.astream(request(1), Cancel())]

    assert in_time(lambda: asyncio.run(main())) == [alone(2)] * 3


def test_who_waits_for_other_threads_between_two_chunks_lends_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_IDLE_S", 0.01)
    one = runner()

    def spread() -> list[int | None]:
        found: list[int | None] = []
        with ThreadPoolExecutor(4) as threads:
            for chunk in one.stream(request(1), Cancel()):
                found.append(chunk.token)
                others = [threads.submit(lambda: [c.token for c in one.stream(request(2), Cancel())]) for _ in range(4)]
                assert [other.result(WAIT_S) for other in others] == [alone(2)] * 4
        return found

    assert in_time(spread) == alone(1)
    assert (one.slots.running, one.slots.waiting) == (0, 0)


def test_a_place_is_not_lent_while_its_reply_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_IDLE_S", 0.0)
    begun, go = threading.Event(), threading.Event()

    def during(session: FakeSession) -> None:
        begun.set()
        assert go.wait(WAIT_S)

    one = runner(1, 8, FakeEngine(during_feed=during))
    other = Slot(one.slots)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(lambda: list(one.stream(request(1), Cancel())))
        assert begun.wait(WAIT_S)
        waiting = threads.submit(other.acquire, Cancel())
        until(lambda: one.slots.waiting == 1)
        assert not one.slots.is_granted(other)
        go.set()
        waiting.result(WAIT_S)
        other.release()
        assert [chunk.token for chunk in running.result(WAIT_S)] == alone(1)


def test_a_thread_that_blocks_its_event_loop_does_not_wait_for_the_tasks_of_it() -> None:
    one = runner(1, 9)

    async def main() -> list[list[int | None]]:
        first = one.astream(request(1), Cancel())
        begun = [(await anext(first)).token]
        queued = [asyncio.create_task(read(one.astream(request(2, which), Cancel()))) for which in range(3)]
        while one.slots.waiting < 3:
            await asyncio.sleep(0)
        blocking = [chunk.token for chunk in one.stream(request(3), Cancel())]  # waits in the loop's own thread
        return [blocking, begun + await read(first), *await asyncio.gather(*queued)]

    expected = [alone(3), alone(1), *(alone(2, which) for which in range(3))]
    assert in_time(lambda: asyncio.run(main())) == expected
    assert (one.slots.running, one.slots.waiting) == (0, 0)


def test_a_thread_that_blocks_its_event_loop_is_not_passed_over_for_a_task_of_it() -> None:
    """The slot comes free when a task of that loop is the first to wait, which cannot take it."""
    one = runner(1, 9)

    async def main() -> list[int | None]:
        with ThreadPoolExecutor(1) as threads, occupied(one.slots) as (held,):
            task = asyncio.create_task(read(one.astream(request(1), Cancel())))
            while one.slots.waiting < 1:
                await asyncio.sleep(0)

            def free_it() -> None:
                until(lambda: one.slots.waiting == 2)
                held.release()

            freed = threads.submit(free_it)
            found = [chunk.token for chunk in one.stream(request(2), Cancel())]
            freed.result(WAIT_S)
            assert await task == alone(1)
            return found

    assert in_time(lambda: asyncio.run(main())) == alone(2)


def test_a_place_that_is_lent_before_its_task_has_seen_it_is_had_later() -> None:
    one = runner()

    async def main() -> list[list[int | None]]:
        with occupied(one.slots) as (held,):
            task = asyncio.create_task(read(one.astream(request(1), Cancel())))
            while one.slots.waiting < 1:
                await asyncio.sleep(0)
            held.release()  # the task has the slot now; it learns of it when the loop comes to it
            blocking = [chunk.token for chunk in one.stream(request(2), Cancel())]
            return [await asyncio.wait_for(task, WAIT_S), blocking]

    assert in_time(lambda: asyncio.run(main())) == [alone(1), alone(2)]
    assert (one.slots.running, one.slots.waiting) == (0, 0)


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_event_loop_that_is_blocked_by_who_waits_in_other_threads_lends_the_places_of_its_tasks(
    is_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by generate_batch(), while the task's slot was given, or its reply is computed in a worker."""
    monkeypatch.setattr(admission, "_IDLE_S", 0.01)
    one = runner()

    async def main() -> list[list[int | None]]:
        with ThreadPoolExecutor(1) as threads, occupied(one.slots) as (held,):
            task = asyncio.create_task(read(one.astream(request(1), Cancel())))
            while one.slots.waiting < 1:
                await asyncio.sleep(0)
            held.release()
            while is_begun and not one.sequences._all:
                await asyncio.sleep(0)
            other = threads.submit(lambda: [chunk.token for chunk in one.stream(request(2), Cancel())])
            found = other.result(WAIT_S)  # blocks the loop
            return [await asyncio.wait_for(task, WAIT_S), found]

    assert in_time(lambda: asyncio.run(main())) == [alone(1), alone(2)]
    assert (one.slots.running, one.slots.waiting) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_threads_and_tasks_of_every_kind_all_come_to_their_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_IDLE_S", 0.002)
    from random import Random

    one = runner(2, 999)

    def call(asked: Request) -> None:
        list(one.stream(asked, Cancel()))

    def thread(which: int) -> None:
        random = Random(seed * 100 + which)
        for _ in range(12):
            cancel, ends = Cancel(), random.randrange(4)
            asked = replace(request(1, random.randrange(5)), priority=random.randrange(-2, 3))
            for at, _ in enumerate(one.stream(asked, cancel)):
                if at == ends:
                    random.choice([cancel.cancel, partial(call, asked), gc.collect])()
                if random.random() < 0.1:
                    break

    async def task(which: int) -> None:
        random = Random(seed * 100 + 50 + which)
        for _ in range(8):
            try:
                await asyncio.wait_for(read(one.astream(request(2, which), Cancel())), random.choice([0.003, WAIT_S]))
            except TimeoutError:
                continue
            async for _ in one.astream(request(3), Cancel()):
                if random.random() < 0.5:
                    break

    async def tasks() -> None:
        await asyncio.gather(*(task(which) for which in range(6)))

    def everything() -> None:
        with ThreadPoolExecutor(6) as threads:
            done = [*(threads.submit(thread, which) for which in range(5)), threads.submit(asyncio.run, tasks())]
            for each in done:
                each.result(WAIT_S)

    in_time(everything)
    gc.collect()
    assert (one.slots.running, one.slots.waiting) == (0, 0)


def test_tasks_whose_prompts_take_their_time_keep_no_step_of_another_from_a_device_for_several() -> None:
    """More of them than the device makes steps of at once: it has them take turns, and has to see the step for that."""
    go = threading.Event()

    def during(session: FakeSession) -> None:
        if session.fed[-1][0] == 1:
            assert go.wait(WAIT_S)

    engine = FakeEngine(during_feed=during)
    engine.parallel = 2  # type: ignore[attr-defined]  # as an engine that FeedsTogether
    one = runner(4, engine=engine)

    async def main() -> list[int | None]:
        prompts = [asyncio.create_task(read(one.astream(request(1), Cancel()))) for _ in range(3)]
        while len(engine.sessions) < 3:
            await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(read(one.astream(request(2), Cancel())), WAIT_S / 3)
        finally:
            go.set()
            await asyncio.gather(*prompts)

    assert in_time(lambda: asyncio.run(main())) == alone(2)


# --- one sequence, many requests


def test_a_conversation_s_second_turn_is_refused_while_the_first_waits() -> None:
    one = runner()
    kept = one.sequences.new()
    with ThreadPoolExecutor(1) as threads:
        with occupied(one.slots):
            first = threads.submit(lambda: [chunk.token for chunk in one.stream(request(1), Cancel(), kept)])
            until(lambda: one.slots.waiting == 1)
            with pytest.raises(ValueError, match="has a reply under way"):
                next(one.stream(request(2), Cancel(), kept))
        assert first.result(WAIT_S) == alone(1)
    assert [chunk.token for chunk in one.stream(request(2), Cancel(), kept)] == alone(2)


def test_a_beam_search_waits_for_a_place_and_can_be_cancelled_there() -> None:
    one, cancel = runner(), Cancel()

    def search() -> list[str]:
        return [reply.finish_reason for reply in one.beam_search(request(1), cancel, beams=2, length_penalty=1.0,
                                                                 early_stopping=False)]  # fmt: skip

    with ThreadPoolExecutor(1) as threads, occupied(one.slots):
        waiting = threads.submit(search)
        until(lambda: one.slots.waiting == 1)
        cancel.cancel()
        assert set(waiting.result(WAIT_S)) == {"cancelled"}
    cancel = Cancel()
    assert in_time(search) == ["length"] * 2
    assert one.slots.running == 0


def test_a_place_that_was_left_is_not_had() -> None:
    slots = Slots(1)
    with occupied(slots):
        gone = Slot(slots)
        gone.release()
        with pytest.raises(Interrupted):
            in_time(lambda: gone.acquire(Cancel()))
    assert (slots.running, slots.waiting) == (0, 0)


# --- how many


def memory(free_bytes: int | None) -> MemoryEstimate:
    return MemoryEstimate(model="m", device="cpu", context=100, weights_bytes=1000, kv_bytes=90, scratch_bytes=10,
               free_bytes=free_bytes, largest_context=100, is_measured=True)  # fmt: skip


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        (None, DEFAULT_SEQUENCES),
        (1100, DEFAULT_SEQUENCES),
        (1100 + 40 * 100, 41),
        (1100 + 40 * 100 - 1, 40),
        (10**9, 256),
    ],
)
def test_there_are_places_for_as_many_as_have_room(free_bytes: int | None, expected: int) -> None:
    assert make_slots(memory(free_bytes), FakeEngine(), None, None).max_running == expected
    assert make_slots(memory(free_bytes), FakeEngine(), 3, 5).max_running == 3


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="max_sequences is 0; expected a whole number from 1"):
        check_concurrency(0, None)
    with pytest.raises(ValueError, match="max_waiting is -1; expected a whole number from 0"):
        check_concurrency(None, -1)
    with pytest.raises(ValueError, match=r"priority is 1\.5; expected a whole number"):
        runner().check(replace(request(1), priority=1.5))  # type: ignore[arg-type]  # as a caller may
