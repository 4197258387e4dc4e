"""Which sequence runs a request, what it is fed, and how it comes back: on fake sessions, without a runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.cancel import Cancel
from embedllm.errors import ContextFull, DeviceError
from embedllm.generation.chunk import Chunk
from embedllm.generation.engine_loop import CallerThread
from embedllm.generation.outbox import AHEAD
from embedllm.generation.request import Request
from embedllm.generation.runner import Runner
from embedllm.kv_cache.sequence import CachedSequence
from embedllm.sampling.draws import Draws
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler
from tests.support.fakes import END, Bytes, FakeEngine, FakeSession, taking_turns, tokens, whole_history

WAIT_S = 120  # a test that waits this long has failed
MANY = AHEAD + 20  # tokens; more than are computed before somebody reads them


def runner_on(engine: FakeEngine) -> Runner:
    return Runner(engine, Bytes())


def request(prompt: Sequence[int], max_tokens: int | None = 3) -> Request:
    return Request(
        prompt=prompt,
        sampling=Sampling(temperature=0),
        max_tokens=max_tokens,
        stop=(),
        stop_tokens=frozenset({END}),
        top_count=0,
    )


def settle(runner: Runner) -> None:
    """Until the engine loop has done all that was there to do."""
    while runner.call(lambda: bool(runner.scheduler.waiting) or any(j.is_active for j in runner.scheduler.running)):
        pass


def generate(runner: Runner, prompt: Sequence[int], max_tokens: int | None = 3) -> list[Chunk]:
    return list(runner.stream(request(prompt, max_tokens), Cancel()))


# --- what is fed


def test_a_prompt_is_fed_in_pieces_of_the_engine_s_size() -> None:
    engine = FakeEngine(chunk=4)
    generate(runner_on(engine), range(10))
    assert engine.sessions[0].fed[:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(step) for step in engine.sessions[0].fed[3:]] == [1, 1]


@pytest.mark.parametrize(
    ("second", "cached", "fed"),
    [
        ([1, 2, 3, 10, 11, 12, 4], 5, [12, 4]),  # the reply's last token was never fed
        ([1, 2, 3, 10, 9], 4, [9]),
        ([1, 2, 9], 2, [9]),
        ([1, 2, 3], 2, [3]),  # the same again: the last token is fed for its logits
        ([1, 2], 1, [2]),
        ([9, 2, 3], 0, [9, 2, 3]),
    ],
)
def test_a_second_prompt_is_fed_from_where_it_differs(second: list[int], cached: int, fed: list[int]) -> None:
    engine = FakeEngine(lambda held: 7 + len(held))
    runner = runner_on(engine)
    assert tokens(generate(runner, [1, 2, 3])) == [10, 11, 12]
    session = engine.sessions[0]
    session.fed.clear()
    chunks = generate(runner, second, 1)
    assert session.fed == [fed]
    assert {chunk.statistics.cached_tokens for chunk in chunks} == {cached}
    assert {chunk.statistics.prompt_tokens for chunk in chunks} == {len(second)}


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.integers(1, 4)), max_size=8),
    st.integers(1, 5),
)
def test_what_came_before_never_changes_a_reply(calls: list[tuple[list[int], int]], chunk: int) -> None:
    engine = FakeEngine(whole_history, chunk=chunk)
    runner = runner_on(engine)
    for prompt, count in calls:
        fresh = generate(runner_on(FakeEngine(whole_history)), prompt, count)
        assert tokens(generate(runner, prompt, count)) == tokens(fresh)
    assert len(engine.sessions) == min(1, len(calls))


# --- room and limits


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "count", "reason"),
    [
        (3, None, 5, "context"),
        (3, 4, 4, "length"),
        (3, 5, 5, "length"),
        (3, 6, 5, "context"),
        (7, None, 1, "context"),
        (7, 1, 1, "length"),
    ],
)
def test_a_reply_ends_where_prompt_and_reply_fill_the_context(
    prompt: int, max_tokens: int | None, count: int, reason: str
) -> None:
    chunks = generate(runner_on(FakeEngine(context=8)), range(prompt), max_tokens)
    assert len(chunks) == count
    assert chunks[-1].finish_reason == reason


@pytest.mark.parametrize("count", [8, 9, 1000])
def test_a_prompt_without_room_for_a_token_is_refused_with_both_numbers(count: int) -> None:
    message = rf"the prompt has {count} tokens; 8 can be held .*Shorten the prompt, or export"
    with pytest.raises(ContextFull, match=message) as caught:
        runner_on(FakeEngine(context=8)).check(request([1] * count))
    assert (caught.value.tokens, caught.value.limit) == (count, 8)


def test_requests_that_make_no_sense_are_refused() -> None:
    runner = runner_on(FakeEngine())
    with pytest.raises(ValueError, match="the prompt is empty"):
        runner.check(request([]))
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"max_tokens is {wrong}; expected a whole number, 1 or more"):
            runner.check(request([1], wrong))


# --- sequences


def test_calls_one_after_another_use_one_session() -> None:
    engine = FakeEngine()
    runner = runner_on(engine)
    for prompt in ([1, 2], [3], [3, 4, 5]):
        generate(runner, prompt)
    assert len(engine.sessions) == 1


def test_each_running_request_has_a_session_and_one_is_kept_afterwards() -> None:
    engine = FakeEngine(whole_history)
    runner = runner_on(engine)
    one, two = (runner.stream(request(prompt, MANY), Cancel()) for prompt in ([1, 2], [3, 4]))
    both: list[tuple[Chunk, Chunk]] = list(zip(one, two, strict=True))
    assert [a.token for a, _ in both] == tokens(generate(runner_on(FakeEngine(whole_history)), [1, 2], MANY))
    assert [b.token for _, b in both] == tokens(generate(runner_on(FakeEngine(whole_history)), [3, 4], MANY))
    settle(runner)
    assert sorted(session.closed for session in engine.sessions) == [False, True]


def test_threads_that_call_at_once_get_the_replies_of_calls_one_by_one() -> None:
    runner = runner_on(FakeEngine(whole_history, chunk=3))
    prompts = [[start % 3, start % 5, *range(start % 7)] for start in range(60)]
    expected = [tokens(generate(runner_on(FakeEngine(whole_history)), prompt)) for prompt in prompts]
    with taking_turns(), ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda prompt: tokens(generate(runner, prompt)), prompts))
    assert replies == expected


def test_a_stream_that_nobody_reads_takes_no_session() -> None:
    engine = FakeEngine()
    runner = runner_on(engine)
    runner.stream(request([1]), Cancel())
    runner.astream(request([1]), Cancel())
    settle(runner)
    assert engine.sessions == []


def test_a_stream_is_computed_ahead_so_far_and_no_further_until_it_is_read() -> None:
    engine = FakeEngine(whole_history, context=256)
    runner = runner_on(engine)
    stream = runner.stream(request([1], 100), Cancel())
    read = [next(stream)]
    settle(runner)
    assert len(engine.sessions[0].tokens) <= 1 + AHEAD + 1
    for _ in range(30):
        read.append(next(stream))
    settle(runner)
    assert 30 < len(engine.sessions[0].tokens) <= 31 + AHEAD + 1
    assert tokens([*read, *stream]) == tokens(generate(runner_on(FakeEngine(whole_history, context=256)), [1], 100))


def test_leaving_a_stream_gives_its_session_back_at_once() -> None:
    engine = FakeEngine()
    runner = runner_on(engine)
    for _ in runner.stream(request([1, 2, 3]), Cancel()):
        break
    (last,) = generate(runner, [1, 2, 3, 4], 1)
    assert len(engine.sessions) == 1
    assert last.statistics.cached_tokens == 3


def test_a_sequence_runs_one_request_at_a_time() -> None:
    engine = FakeEngine()
    runner = runner_on(engine)
    kept = runner.call(runner.sequences.new)
    first = runner.stream(request([1, 2, 3], MANY), Cancel(), kept)
    chunks = [next(first)]
    with pytest.raises(ValueError, match="has a reply under way; finish, close or cancel it first"):
        next(runner.stream(request([9, 9]), Cancel(), kept))
    chunks += first
    assert tokens(chunks) == tokens(generate(runner_on(FakeEngine()), [1, 2, 3], MANY))
    assert len(list(runner.stream(request([9, 9]), Cancel(), kept))) == 3


def test_a_feed_that_fails_leaves_a_sequence_that_works() -> None:
    def fail(session: FakeSession) -> None:
        if len(session.fed) == 2:
            raise DeviceError("gone")

    engine = FakeEngine(whole_history, chunk=4, during_feed=fail)
    runner = runner_on(engine)
    with pytest.raises(DeviceError, match="gone"):
        generate(runner, range(10))
    chunks = generate(runner, range(10))
    assert tokens(chunks) == tokens(generate(runner_on(FakeEngine(whole_history)), range(10)))
    assert chunks[0].statistics.cached_tokens == 4
    assert len(engine.sessions) == 1


def test_close_frees_every_sequence_and_ends_what_runs_at_its_next_step() -> None:
    engine = FakeEngine()
    runner = runner_on(engine)
    kept, running = (runner.call(runner.sequences.new) for _ in range(2))  # as conversations do
    list(runner.stream(request([1]), Cancel(), kept))
    streams = [runner.stream(request([1], MANY), Cancel()) for _ in range(2)]
    streams.append(runner.stream(request([1], MANY), Cancel(), running))
    assert [next(stream).token for stream in streams] == [ord("b")] * 3
    runner.close()
    runner.close()
    assert engine.closed
    assert runner.sequences.is_closed
    assert all(session.closed for session in engine.sessions)
    for stream in streams:
        *chunks, last = stream
        assert tokens(chunks) == tokens(generate(runner_on(FakeEngine()), [1], MANY))[1 : len(chunks) + 1]
        assert last.finish_reason == "cancelled"


@pytest.mark.parametrize("interruptible", [True, False])
def test_close_ends_what_runs_in_other_threads_and_tasks(interruptible: bool) -> None:
    feed = SlowFeed(interruptible=interruptible)
    runner = runner_on(FakeEngine(during_feed=feed))

    async def main() -> list[Chunk]:
        task = asyncio.create_task(read(runner.astream(request([1, 2, 3], 9), Cancel())))
        await feed.until_entered()
        closing = asyncio.create_task(asyncio.to_thread(runner.close))  # waits for what runs
        (job,) = runner.scheduler.running
        while not job.cancel.cancelled:
            await asyncio.sleep(0.001)
        feed.release.set()
        await closing
        return await task

    chunks = asyncio.run(main())
    assert chunks[-1].finish_reason == "cancelled"
    assert len(chunks) < 9  # a feed that was not stopped may have given one


@pytest.mark.parametrize("is_async", [True, False])
def test_feeds_are_made_in_the_thread_of_the_device(is_async: bool) -> None:
    names: set[str] = set()
    engine = FakeEngine(during_feed=lambda session: names.add(threading.current_thread().name))
    runner = runner_on(engine)

    async def main() -> None:
        await asyncio.gather(*(read(runner.astream(request([1, place]), Cancel())) for place in range(3)))

    if is_async:
        asyncio.run(main())
    else:
        generate(runner, [1])
    runner.close()
    assert names == {f"embedllm-{engine.device.name}"}
    assert len(engine.threads) == 1


def test_a_large_sequence_is_not_kept_for_a_small_request() -> None:
    engine = FakeEngine(context=10000)
    runner = runner_on(engine)
    generate(runner, range(3000))
    generate(runner, range(2600))  # needs more than a quarter
    assert len(engine.sessions) == 1
    generate(runner, range(100))
    assert [session.closed for session in engine.sessions] == [True, False]
    runner.call(runner.sequences.release)
    runner.call(runner.sequences.release)
    assert [session.closed for session in engine.sessions] == [True, True]
    generate(runner, range(100))
    assert len(engine.sessions) == 3


@pytest.mark.parametrize("is_kept", [True, False])
def test_nothing_runs_after_close(is_kept: bool) -> None:
    runner = runner_on(FakeEngine())
    kept = runner.call(runner.sequences.new) if is_kept else None
    list(runner.stream(request([1, 2]), Cancel(), kept))
    runner.close()
    with pytest.raises(ValueError, match="this model was closed"):
        list(runner.stream(request([1, 2]), Cancel(), kept))
    with pytest.raises(ValueError, match="this model was closed"):
        runner.call(runner.sequences.new)


# --- interruption


def test_cancelling_interrupts_the_feed_that_runs() -> None:
    cancel = Cancel()
    engine = FakeEngine(whole_history, chunk=4, during_feed=lambda session: cancel.cancel())
    runner = runner_on(engine)
    (only,) = runner.stream(request(range(10)), cancel)
    assert (only.finish_reason, only.statistics.tokens) == ("cancelled", 0)
    assert engine.sessions[0].fed == [[0, 1, 2, 3]]
    assert engine.sessions[0].position == 0
    engine.during_feed = lambda session: None
    assert tokens(generate(runner, range(10))) == tokens(generate(runner_on(FakeEngine(whole_history)), range(10)))
    assert len(engine.sessions) == 1


def test_one_switch_ends_two_generations_and_no_third_begins() -> None:
    engine = FakeEngine()
    runner, cancel = runner_on(engine), Cancel()
    streams = [runner.stream(request([1, 2], MANY), cancel) for _ in range(2)]
    for stream in streams:
        next(stream)
    cancel.cancel()
    assert [list(stream)[-1].finish_reason for stream in streams] == ["cancelled", "cancelled"]
    fed = [list(session.fed) for session in engine.sessions]
    assert [chunk.finish_reason for chunk in runner.stream(request([7]), cancel)] == ["cancelled"]
    assert [session.fed for session in engine.sessions] == fed
    assert generate(runner, [1])[-1].finish_reason == "length"


# --- asyncio


async def read(chunks: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in chunks]


def test_an_asynchronous_stream_gives_the_same() -> None:
    engine = FakeEngine(whole_history, chunk=4)
    chunks = asyncio.run(read(runner_on(engine).astream(request(range(10)), Cancel())))
    other = FakeEngine(whole_history, chunk=4)
    assert tokens(chunks) == tokens(generate(runner_on(other), range(10)))
    assert engine.sessions[0].fed == other.sessions[0].fed


def test_leaving_an_asynchronous_stream_gives_its_session_back_at_once() -> None:
    engine = FakeEngine()
    runner = runner_on(engine)

    async def main() -> list[Chunk]:
        async for _ in runner.astream(request([1, 2, 3]), Cancel()):
            break
        return await read(runner.astream(request([1, 2, 3, 4], 1), Cancel()))

    (last,) = asyncio.run(main())
    assert len(engine.sessions) == 1
    assert last.statistics.cached_tokens == 3


def test_a_closed_asynchronous_stream_has_no_more_chunks() -> None:
    engine = FakeEngine()
    runner = runner_on(engine)

    async def main() -> None:
        stream = runner.astream(request([1, 2, 3]), Cancel())
        await anext(stream)
        await stream.aclose()
        await stream.aclose()
        assert await read(stream) == []
        await read(runner.astream(request([1]), Cancel()))

    asyncio.run(main())
    assert len(engine.sessions) == 1


def test_a_second_task_that_reads_a_stream_is_refused_and_the_first_goes_on() -> None:
    feed = SlowFeed(interruptible=False)
    engine = FakeEngine(whole_history, during_feed=feed)

    async def main() -> list[Chunk]:
        stream = runner_on(engine).astream(request(range(10)), Cancel())
        first = asyncio.create_task(read(stream))
        await feed.until_entered()
        with pytest.raises(ValueError, match="another task waits"):
            await asyncio.wait_for(anext(stream), WAIT_S)
        feed.release.set()
        return await asyncio.wait_for(first, WAIT_S)

    assert tokens(asyncio.run(main())) == tokens(generate(runner_on(FakeEngine(whole_history)), range(10)))


class SlowFeed:
    """A feed that waits: until it is interrupted, or until `release` is set when it cannot be interrupted."""

    def __init__(self, *, interruptible: bool) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        self.ended: list[str] = []
        self._interruptible = interruptible

    def __call__(self, session: FakeSession) -> None:
        self.entered.set()
        assert (session.stopping if self._interruptible else self.release).wait(WAIT_S)
        self.ended.append("interrupted" if session.stopping.is_set() else "not interrupted")

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, WAIT_S)


def check_works_on_its_one_session(runner: Runner, engine: FakeEngine) -> None:
    engine.during_feed = lambda session: None
    assert tokens(generate(runner, [1, 2, 3])) == tokens(generate(runner_on(FakeEngine(whole_history)), [1, 2, 3]))
    assert len(engine.sessions) == 1


@pytest.mark.parametrize("interruptible", [True, False])
@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_a_cancelled_task_ends_at_once_and_its_feed_is_interrupted(cancels: int, interruptible: bool) -> None:
    feed = SlowFeed(interruptible=interruptible)
    engine = FakeEngine(whole_history, during_feed=feed)
    runner = runner_on(engine)

    async def main() -> None:
        task = asyncio.create_task(read(runner.astream(request([1, 2, 3]), Cancel())))
        await feed.until_entered()
        for _ in range(cancels):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        feed.release.set()
        settle(runner)
        assert feed.ended == ["interrupted"]

    asyncio.run(main())
    check_works_on_its_one_session(runner, engine)


def test_a_closing_event_loop_interrupts_the_feed_and_does_not_wait_for_it() -> None:
    feed = SlowFeed(interruptible=False)
    engine = FakeEngine(whole_history, during_feed=feed)
    runner = runner_on(engine)
    left: list[asyncio.Task[object]] = []

    async def main() -> None:
        left.append(asyncio.create_task(read(runner.astream(request([1, 2, 3]), Cancel()))))
        await feed.until_entered()

    asyncio.run(main())  # cancels every task that is left
    assert left[0].cancelled()
    assert feed.ended == []
    feed.release.set()
    settle(runner)
    assert feed.ended == ["interrupted"]
    check_works_on_its_one_session(runner, engine)


def test_the_switch_interrupts_an_asynchronous_feed() -> None:
    feed = SlowFeed(interruptible=True)
    cancel = Cancel()

    async def main() -> list[Chunk]:
        task = asyncio.create_task(read(runner_on(FakeEngine(during_feed=feed)).astream(request([1]), cancel)))
        await feed.until_entered()
        cancel.cancel()
        return await task

    assert [chunk.finish_reason for chunk in asyncio.run(main())] == ["cancelled"]


# --- what runs ahead of the sampler


class ForeseeingSession(FakeSession):
    """Notes what it is told of the sampler."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine)
        self.foreseen: list[Draws | None] = []

    def foresee(self, draws: Draws | None) -> None:
        self.foreseen.append(draws)


class ForeseeingEngine(FakeEngine):
    def open(self, capacity: int = 0) -> FakeSession:
        self.sessions.append(ForeseeingSession(self))
        return self.sessions[-1]


@pytest.mark.parametrize(
    ("changes", "is_known"),
    [({}, True), ({"min_tokens": 2}, False), ({"sampling": Sampling(repetition_penalty=1.5)}, False)],
)
def test_a_session_knows_the_sampler_of_its_request_until_that_ends(changes: dict[str, Any], is_known: bool) -> None:
    engine = ForeseeingEngine()
    asked = replace(request([1, 2]), **{"sampling": Sampling(temperature=0.7, seed=3), **changes})
    list(runner_on(engine).stream(asked, Cancel()))
    session = engine.sessions[0]
    assert isinstance(session, ForeseeingSession)
    *known, last = session.foreseen
    assert [draws is not None for draws in known] == [is_known]
    assert last is None


def test_a_sequence_whose_memory_was_given_to_others_knows_the_sampler_again() -> None:
    engine = ForeseeingEngine()
    sequence = CachedSequence(engine, CallerThread())
    draws = Sampler(Sampling()).draws
    sequence.foresee(draws)
    sequence.feed([1, 2])
    sequence.evict()
    session = engine.sessions[-1]
    assert session is sequence.session
    assert isinstance(session, ForeseeingSession)
    assert session.foreseen == [draws]
