"""Who runs, who waits and who is refused; and that nobody waits for one who waits for him: on fakes."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from embedllm.cancel import Cancel
from embedllm.errors import Busy, DeviceError
from embedllm.generation.chunk import Chunk
from embedllm.generation.outbox import AHEAD
from embedllm.generation.request import Request, reject_first_only
from embedllm.generation.runner import Runner
from embedllm.sampling.options import Sampling
from embedllm.types import Logits
from tests.support.fakes import Bytes, FakeBatchEngine, FakeEngine, FakeSession, alone, tokens, whole_history

WAIT_S = 120  # a test that waits this long has failed
MANY = AHEAD + 20  # tokens; more than are computed before somebody reads them
LONG = 100_000  # tokens; a reply that no test waits for
HELD = 99  # a prompt whose feed waits for the test
T = TypeVar("T")


class Gate:
    """An engine's feeds of the prompt HELD wait until it is opened."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()

    def __call__(self, session: FakeSession) -> None:
        if session.fed[-1] == [HELD]:
            self.begun.set()
            assert self.opened.wait(WAIT_S)


def make_runner(most: int = 1, waiting: int = 8, engine: FakeEngine | None = None) -> Runner:
    return Runner(engine or FakeEngine(whole_history, context=2 * LONG), Bytes(), max_running=most, max_waiting=waiting)


def request(*prompt: int, max_tokens: int = 3, priority: int = 0) -> Request:
    return Request(prompt=prompt, sampling=Sampling(temperature=0), max_tokens=max_tokens, stop=(),
                   stop_tokens=frozenset(), top_count=0, priority=priority)  # fmt: skip


def in_time(work: Callable[[], T]) -> T:
    """What it gives, in a thread, so that a deadlock fails the test."""
    done: Future[T] = Future()

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


def check_is_free(runner: Runner) -> None:
    until(lambda: runner.call(lambda: not runner.scheduler.running and not runner.scheduler.waiting))
    assert not any(sequence.is_running for sequence in runner.sequences.sequences)


@contextmanager
def occupied(runner: Runner) -> Iterator[None]:
    """Within the block, another request has the only place, and somebody reads it."""
    engine, ended, turn = runner.engine, threading.Event(), threading.Event()
    assert isinstance(engine, FakeEngine)

    def read_on() -> None:
        for _ in runner.stream(request(HELD, max_tokens=LONG), Cancel()):
            if ended.is_set():
                return

    engine.during_feed = lambda session: None if ended.is_set() else turn.wait(0.001)  # type: ignore[misc]
    with ThreadPoolExecutor(1) as threads:
        threads.submit(read_on)
        until(lambda: len(runner.scheduler.running) == 1)
        try:
            yield
        finally:
            ended.set()


# --- a full queue, and giving up


@pytest.mark.parametrize("is_async", [True, False])
def test_a_full_queue_is_said_at_once_and_who_waits_is_served(is_async: bool) -> None:
    gate = Gate()
    runner = make_runner(1, 1, FakeEngine(whole_history, during_feed=gate))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: tokens(runner.stream(request(HELD), Cancel())))
        assert gate.begun.wait(WAIT_S)
        waiting = threads.submit(lambda: list(runner.stream(request(1), Cancel())))
        until(lambda: runner._loop._inbox.qsize() > 0)  # type: ignore[union-attr]
        refused: Future[object] = Future()

        def call() -> None:
            try:
                asyncio.run(read(runner.astream(request(2), Cancel()))) if is_async else list(
                    runner.stream(request(2), Cancel())
                )
            except Busy as error:
                refused.set_result(error)

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: runner._loop._inbox.qsize() > 1)  # type: ignore[union-attr]
        gate.opened.set()
        error = refused.result(WAIT_S)
        thread.join(WAIT_S)
        assert isinstance(error, Busy)
        assert error.waiting == 1
        assert first.result(WAIT_S) == alone(HELD)
        chunks = waiting.result(WAIT_S)
        assert [chunk.token for chunk in chunks] == alone(1)
        assert chunks[0].statistics.queued_s > 0
    check_is_free(runner)


def test_a_call_that_is_cancelled_while_it_waits_ends_at_once() -> None:
    runner, cancel = make_runner(), Cancel()
    with ThreadPoolExecutor(1) as threads, occupied(runner):
        waiting = threads.submit(lambda: list(runner.stream(request(1, 2, max_tokens=MANY), cancel)))
        until(lambda: len(runner.scheduler.waiting) == 1)
        cancel.cancel()
        (only,) = waiting.result(WAIT_S)
        assert (only.finish_reason, only.text, only.token) == ("cancelled", "", None)
        assert (only.statistics.prompt_tokens, only.statistics.tokens) == (2, 0)
        assert only.statistics.queued_s > 0
        assert [chunk.finish_reason for chunk in runner.stream(request(1), cancel)] == ["cancelled"]
    check_is_free(runner)


def test_a_call_whose_time_is_over_while_it_waits_ends_with_that_reason() -> None:
    runner = make_runner()
    with occupied(runner):
        (only,) = in_time(lambda: list(runner.stream(replace(request(1), timeout_s=0.02), Cancel())))
    assert (only.finish_reason, only.token) == ("timeout", None)
    *_, last = runner.stream(request(1), Cancel())
    assert last.finish_reason == "length"
    check_is_free(runner)


@pytest.mark.parametrize("how", ["switch", "task", "aclose"])
def test_a_task_that_gives_up_while_it_waits_leaves_the_queue(how: str) -> None:
    runner, cancel = make_runner(), Cancel()

    async def main() -> None:
        with occupied(runner):
            stream = runner.astream(request(1), cancel)
            task = asyncio.create_task(read(stream))
            while not runner.scheduler.waiting:
                await asyncio.sleep(0)
            if how == "task":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                if how == "switch":
                    threading.Thread(target=cancel.cancel).start()
                else:
                    await stream.aclose()
                assert await asyncio.wait_for(task, WAIT_S) == [None]
            until(lambda: not runner.scheduler.waiting)
        assert await asyncio.wait_for(read(runner.astream(request(1), Cancel())), WAIT_S) == alone(1)

    asyncio.run(main())
    check_is_free(runner)


def test_streams_that_are_left_early_or_dropped_are_ended() -> None:
    runner = make_runner()
    left = runner.stream(request(2, max_tokens=MANY), Cancel())
    next(left)
    left.close()
    check_is_free(runner)

    async def leave() -> None:
        async for _ in runner.astream(request(2, max_tokens=MANY), Cancel()):
            break
        gc.collect()
        check_is_free(runner)

    asyncio.run(leave())
    assert in_time(lambda: tokens(runner.stream(request(3), Cancel()))) == alone(3)


def test_closing_ends_those_who_wait_in_threads_and_tasks() -> None:
    runner = make_runner()

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads, occupied(runner):
            waiting = threads.submit(lambda: [chunk.finish_reason for chunk in runner.stream(request(1), Cancel())])
            task = asyncio.create_task(read(runner.astream(request(1), Cancel())))
            while len(runner.scheduler.waiting) < 2:
                await asyncio.sleep(0)
            runner.close()
            assert await asyncio.wait_for(task, WAIT_S) == [None]
            assert waiting.result(WAIT_S) == ["cancelled"]

    asyncio.run(main())


# --- nobody waits for one who waits for him


def test_a_call_within_the_loop_over_a_stream_is_served() -> None:
    runner = make_runner()

    def nested() -> list[int | None]:
        found: list[int | None] = []
        for chunk in runner.stream(request(1, max_tokens=MANY), Cancel()):
            found.append(chunk.token)
            assert tokens(runner.stream(request(2, max_tokens=MANY), Cancel())) == alone(2, count=MANY)
        return found

    assert in_time(nested) == alone(1, count=MANY)
    check_is_free(runner)


def test_streams_that_are_read_in_turn_share_one_place() -> None:
    runner = make_runner()
    streams = [runner.stream(request(1, which, max_tokens=MANY), Cancel()) for which in range(3)]
    found = in_time(lambda: list(zip(*streams, strict=True)))
    expected = [alone(1, which, count=MANY) for which in range(3)]
    assert [[chunk.token for chunk in each] for each in zip(*found, strict=True)] == expected


def test_a_task_that_calls_within_its_own_stream_is_served() -> None:
    runner = make_runner()

    async def main() -> list[list[int | None]]:
        outer = runner.astream(request(1, max_tokens=MANY), Cancel())
        return [await read(runner.astream(request(2), Cancel())) async for _ in outer]

    assert in_time(lambda: asyncio.run(main())) == [alone(2)] * MANY


def test_who_waits_for_other_threads_between_two_chunks_lets_them_run() -> None:
    runner = make_runner()

    def spread() -> list[int | None]:
        found: list[int | None] = []
        with ThreadPoolExecutor(4) as threads:
            for chunk in runner.stream(request(1, max_tokens=MANY), Cancel()):
                found.append(chunk.token)
                others = [threads.submit(lambda: tokens(runner.stream(request(2), Cancel()))) for _ in range(4)]
                assert [other.result(WAIT_S) for other in others] == [alone(2)] * 4
        return found

    assert in_time(spread) == alone(1, count=MANY)
    check_is_free(runner)


def test_a_thread_that_blocks_its_event_loop_does_not_wait_for_the_tasks_of_it() -> None:
    runner = make_runner(1, 9)

    async def main() -> list[list[int | None]]:
        first = runner.astream(request(1, max_tokens=MANY), Cancel())
        begun = [(await anext(first)).token]
        queued = [
            asyncio.create_task(read(runner.astream(request(2, which, max_tokens=MANY), Cancel())))
            for which in range(3)
        ]
        await asyncio.sleep(0)
        blocking = tokens(runner.stream(request(3), Cancel()))  # waits in the loop's own thread
        return [blocking, begun + await read(first), *await asyncio.gather(*queued)]

    expected = [alone(3), alone(1, count=MANY), *(alone(2, which, count=MANY) for which in range(3))]
    assert in_time(lambda: asyncio.run(main())) == expected
    check_is_free(runner)


class Calling:
    """A constraint that allows all, and calls the model before each choice, in the thread of the engine loop."""

    is_done = False
    is_stop_allowed = True

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def prepare(self) -> None: ...

    def allowed(self, logits: Logits) -> Logits:
        self._call()
        return logits

    def note(self, token: int) -> None: ...


@pytest.mark.parametrize("kind", [FakeEngine, FakeBatchEngine])
def test_what_chooses_tokens_may_call_the_model(kind: type[FakeEngine]) -> None:
    runner = make_runner(engine=kind(whole_history))
    inner: list[list[int | None]] = []

    def call() -> None:
        inner.append(tokens(runner.stream(request(2, max_tokens=MANY), Cancel())))
        inner.append(*([[chunk.token for chunk in chunks] for chunks in runner.run_all([request(3)], Cancel())]))

    outer = replace(request(1, max_tokens=4), constraint=Calling(call))
    with ThreadPoolExecutor(3) as threads:
        others = [threads.submit(lambda: tokens(runner.stream(request(4, max_tokens=40), Cancel()))) for _ in range(2)]
        assert in_time(lambda: tokens(runner.stream(outer, Cancel()))) == alone(1, count=4)
        assert [other.result(WAIT_S) for other in others] == [alone(4, count=40)] * 2
    assert inner == [alone(2, count=MANY), alone(3)] * 4
    check_is_free(runner)


def test_what_chooses_tokens_may_fail_or_close_the_model() -> None:
    runner = make_runner()

    def fail() -> None:
        raise KeyError("no such token")

    with pytest.raises(KeyError, match="no such token"):
        in_time(lambda: list(runner.stream(replace(request(1), constraint=Calling(fail)), Cancel())))
    assert tokens(runner.stream(request(1), Cancel())) == alone(1)
    chunks = in_time(lambda: list(runner.stream(replace(request(1), constraint=Calling(runner.close)), Cancel())))
    assert chunks[-1].finish_reason == "cancelled"


# --- several requests in one call


@pytest.mark.parametrize("most", [1, 4])
def test_the_requests_of_one_call_give_what_each_gives_alone_in_order(most: int) -> None:
    runner = make_runner(most, 0, FakeBatchEngine(whole_history))
    requests = reject_first_only([request(which, max_tokens=9) for which in range(12)])
    assert [one.is_rejectable for one in requests] == [True] + [False] * 11
    found = in_time(lambda: [[c.token for c in chunks] for chunks in runner.run_all(requests, Cancel())])
    assert found == [alone(which, count=9) for which in range(12)]
    assert in_time(lambda: list(runner.run_all([], Cancel()))) == []
    check_is_free(runner)


def test_an_error_of_one_ends_the_others_at_once() -> None:
    """Also those before it, which the caller waits for first."""
    ended = threading.Event()

    def during(session: FakeSession) -> None:
        if session.fed[-1] == [7]:
            raise DeviceError("out of memory")
        ended.wait(0.005)

    runner = make_runner(4, 0, FakeEngine(whole_history, during_feed=during, context=4096))
    requests = reject_first_only([request(which, max_tokens=4000) for which in (1, 2, 7)])
    with pytest.raises(DeviceError, match="out of memory"):
        in_time(lambda: list(runner.run_all(requests, Cancel())))
    check_is_free(runner)
    engine = runner.engine
    assert isinstance(engine, FakeEngine)
    assert max(len(session.fed) for session in engine.sessions) < 100


def test_cancelling_ends_all_and_leaves_the_switch_to_its_owner() -> None:
    runner, cancel = make_runner(), Cancel()
    requests = reject_first_only([request(which) for which in range(3)])
    found = in_time(lambda: list(runner.run_all(requests, cancel)))
    assert not cancel.cancelled
    assert [chunks[-1].finish_reason for chunks in found] == ["length"] * 3
    cancel.cancel()
    found = in_time(lambda: list(runner.run_all(requests, cancel)))
    assert [chunks[-1].finish_reason for chunks in found] == ["cancelled"] * 3


def test_a_beam_search_waits_for_a_place_and_can_be_cancelled_there() -> None:
    runner, cancel = make_runner(), Cancel()

    def search() -> list[str]:
        replies = runner.beam_search(request(1), cancel, beams=2, length_penalty=1.0, early_stopping=False)
        return [reply.finish_reason for reply in replies]

    with ThreadPoolExecutor(1) as threads, occupied(runner):
        waiting = threads.submit(search)
        until(lambda: len(runner.scheduler.waiting) == 1)
        cancel.cancel()
        assert set(waiting.result(WAIT_S)) == {"cancelled"}
    cancel = Cancel()
    assert in_time(search) == ["length"] * 2
    check_is_free(runner)


def test_a_conversation_has_a_place_only_while_it_replies() -> None:
    runner = make_runner()
    talks = [runner.call(runner.sequences.new) for _ in range(5)]
    for talk in talks:  # more than there are places, each with its KV
        list(runner.stream(request(0, max_tokens=1), Cancel(), talk))
    check_is_free(runner)
    assert [talk.tokens for talk in talks] == [[0]] * 5


def test_a_priority_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"priority is 1\.5; expected a whole number"):
        make_runner().check(replace(request(1), priority=1.5))  # type: ignore[arg-type]  # as a caller may
