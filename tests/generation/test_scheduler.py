"""The scheduler, iteration by iteration, without a thread: who is fed and who waits; nothing is lost or doubled."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from embedllm.backends.base import Interrupted
from embedllm.cancel import Cancel
from embedllm.errors import Busy, DeviceError
from embedllm.generation import job as job_module
from embedllm.generation import runner as runner_module
from embedllm.generation import scheduler as scheduler_module
from embedllm.generation.chunk import Chunk
from embedllm.generation.engine_loop import Work, _turn
from embedllm.generation.job import PRIORITY_S, Job, Steps
from embedllm.generation.loop import Feed
from embedllm.generation.request import Request
from embedllm.generation.runner import Runner
from embedllm.generation.scheduler_statistics import scheduler_statistics
from embedllm.kv_cache import prefix_cache as prefix_cache_module
from embedllm.kv_cache import sequence_pool as sequence_pool_module
from embedllm.kv_cache.prefix_cache import PrefixCache
from embedllm.kv_cache.sequence import CachedSequence
from embedllm.sampling.options import Sampling
from tests.support.fakes import (
    END,
    Bytes,
    FakeBatchEngine,
    FakeEngine,
    FakePromptEngine,
    FakeSession,
    alone,
    whole_history,
)

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.types import Logits


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    """Requests that are left in the middle end here: a direct model's can in no other thread."""
    yield
    gc.collect()


class Reader:
    """What takes a request's chunks: at once, or when the test says so."""

    def __init__(self, *, is_reading: bool = True) -> None:
        self.is_reading = is_reading
        self.chunks: list[Chunk] = []
        self.taken = 0
        self.ends: list[BaseException | None] = []

    @property
    def is_full(self) -> bool:
        return len(self.chunks) - self.taken >= 3

    def put(self, item: Chunk) -> None:
        assert not self.ends
        self.chunks.append(item)
        if self.is_reading:
            self.taken = len(self.chunks)

    def flush(self) -> None: ...

    def end(self, error: BaseException | None = None) -> None:
        self.ends.append(error)

    def resume(self) -> None:
        self.is_reading, self.taken = True, len(self.chunks)

    @property
    def tokens(self) -> list[int]:
        return [chunk.token for chunk in self.chunks if chunk.token is not None]

    @property
    def reason(self) -> str | None:
        return self.chunks[-1].finish_reason if self.chunks else None


class SwappingSession(FakeSession):
    """One whose KV can be taken out: every number in it tells the token that it is of."""

    def export_state(self, start: int, stop: int) -> KeyValues:
        keys = np.array(self.tokens[start:stop], np.float32)[None, :, None]
        return [(keys, -keys)]

    def import_state(self, state: KeyValues) -> None:
        self.tokens += [int(key) for key in state[0][0][0, :, 0]]
        self.position = len(self.tokens)


class SwappingEngine(FakeBatchEngine):
    """On a device with memory of its own, so that what is preempted is swapped."""

    def open(self, capacity: int = 0) -> FakeSession:
        self.device = replace(self.device, memory=1 << 30)
        self.sessions.append(SwappingSession(self))
        return self.sessions[-1]


def request(prompt: Sequence[int], max_tokens: int | None = 3, **options: object) -> Request:
    return Request(prompt=prompt, sampling=Sampling(temperature=0), max_tokens=max_tokens, stop=(),
                   stop_tokens=frozenset({END}), top_count=0, **options)  # type: ignore[arg-type]  # by name  # fmt: skip


def direct(engine: FakeEngine, **options: int | None) -> Runner:
    return Runner(engine, Bytes(), is_direct=True, **options)  # type: ignore[arg-type]  # by name


def submit(
    runner: Runner, asked: Request, sequence: CachedSequence | None = None, *, is_reading: bool = True
) -> tuple[Job, Reader]:
    """As Runner.stream() does it, for the next steps."""
    reader = Reader(is_reading=is_reading)
    job = Job(
        begin=lambda job: runner._steps(asked, job, sequence),
        outbox=reader,
        cancel=Cancel(),
        prompt=asked.prompt,
        adapter=asked.adapter,
        unstarted=partial(runner_module._cancelled_in_queue, asked),
        tokens=len(asked.prompt),
        priority=asked.priority,
        timeout_s=asked.timeout_s,
        is_rejectable=asked.is_rejectable,
        sequence=sequence,
    )
    runner.scheduler.submit(job)
    return job, reader


def run_to_the_end(runner: Runner, steps: int = 500) -> None:
    for _ in range(steps):
        if not runner.scheduler.step():
            return
    raise AssertionError(f"after {steps} iterations there is still something to do")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def clocked() -> Iterator[Clock]:
    """Within the block, time passes for the scheduler when the test says so."""
    clock = Clock()
    time = SimpleNamespace(monotonic=clock, perf_counter=clock)
    with ExitStack() as stack:
        for module in (job_module, scheduler_module, runner_module):
            stack.enter_context(patch.object(module, "time", time))
        yield clock


@contextmanager
def clocked_with_short_prefixes() -> Iterator[Clock]:
    """As clocked(); prompts of a few tokens are worth sharing."""
    with (
        clocked() as clock,
        patch.object(prefix_cache_module, "MIN_TOKENS", 2),
        patch.object(sequence_pool_module, "MIN_TOKENS", 2),
    ):
        yield clock


# --- any schedule


class Watched:
    """A request of the machine, and what it may end with."""

    def __init__(self, job: Job, reader: Reader, asked: Request, context: int, where: int | None) -> None:
        """where: which of the sequences that are kept it runs on."""
        self.job = job
        self.reader = reader
        self.where = where
        room = context - len(asked.prompt)
        self.expected = alone(*asked.prompt, count=min(asked.max_tokens or room, room))
        self.may_fail = False
        self.is_checked = False

    @property
    def is_over(self) -> bool:
        return bool(self.reader.ends)


class Schedules(RuleBasedStateMachine):
    """Requests that come, are cancelled, left, not read and read again, on an engine that fails now and then."""

    CONTEXT = 40

    @initialize(
        kind=st.sampled_from([FakeEngine, FakeBatchEngine, FakePromptEngine, SwappingEngine]),
        mixes=st.booleans(),
        max_batch=st.integers(2, 4),
        max_running=st.integers(1, 5),
        max_waiting=st.integers(0, 6),
        kv_tokens=st.one_of(st.none(), st.integers(40, 120)),
        caches=st.booleans(),
    )
    def begin(
        self,
        kind: type[FakeEngine],
        mixes: bool,
        max_batch: int,
        max_running: int,
        max_waiting: int,
        kv_tokens: int | None,
        caches: bool,
    ) -> None:
        options = {"context": self.CONTEXT, "chunk": 5, "capacity_step": 4, "during_feed": lambda session: self.fail()}
        if issubclass(kind, FakeBatchEngine):
            options |= {"max_batch": max_batch, "mixes_lengths": mixes, "prompt_budget": 3,
                        "during_run": lambda sessions: self.fail()}  # fmt: skip
        self.engine = kind(whole_history, **options)  # type: ignore[arg-type]  # by name
        self.runner = Runner(self.engine, Bytes(), is_direct=True, max_running=max_running, max_waiting=max_waiting,
                             kv_tokens=kv_tokens, prefix_cache=PrefixCache(1 << 12) if caches else None)  # fmt: skip
        self.scheduler, self.pool = self.runner.scheduler, self.runner.sequences
        self.kept = [self.pool.new() for _ in range(2)]  # as conversations do
        self.requests: list[Watched] = []
        self.fails_in = 0
        self.is_closed = False
        self._patched = clocked_with_short_prefixes()
        self.clock = self._patched.__enter__()
        make_room = self.scheduler._make_room
        self.scheduler._make_room = lambda: (make_room(), self.kv_is_within_its_memory())[0]  # type: ignore[method-assign]

    def kv_is_within_its_memory(self) -> None:
        """Before each run, unless there is one request only: that is never kept from running."""
        if self.pool.kv_tokens is None or self.pool._count_reserved_tokens() <= self.pool.kv_tokens:
            return
        running = self.scheduler.running
        assert not any(kept.tokens for kept in self.kept if not kept.is_running)
        able = [job for job in running if job.after_recall is None]
        assert not (len(running) > 1 and any(job.outbox.is_full for job in able))
        assert not able or sum(job.is_active for job in running) == 1

    def fail(self) -> None:
        if self.fails_in:
            self.fails_in -= 1
            if not self.fails_in:
                for one in self.requests:
                    one.may_fail |= not one.is_over
                raise DeviceError("out of memory")

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=30),
        max_tokens=st.one_of(st.none(), st.integers(1, 20)),
        priority=st.integers(-1, 1),
        timeout_s=st.sampled_from([math.inf, math.inf, 1.0, 30.0]),
        where=st.sampled_from([None, None, 0, 1]),
        is_reading=st.booleans(),
        is_rejectable=st.booleans(),
    )
    def submit(
        self, prompt: list[int], max_tokens: int | None, priority: int, timeout_s: float, where: int | None,
        is_reading: bool, is_rejectable: bool,
    ) -> None:  # fmt: skip
        if where is not None and any(not one.is_over and one.where == where for one in self.requests):
            return
        asked = request(prompt, max_tokens, priority=priority, timeout_s=timeout_s, is_rejectable=is_rejectable)
        waiting = sum(job.is_rejectable for job in self.scheduler.waiting)
        job, reader = submit(self.runner, asked, None if where is None else self.kept[where], is_reading=is_reading)
        watched = Watched(job, reader, asked, self.CONTEXT, where)
        self.requests.append(watched)
        if watched.is_over:
            (error,) = reader.ends
            assert not reader.chunks
            assert isinstance(error, ValueError if self.is_closed else Busy)
            assert self.is_closed or (is_rejectable and waiting >= self.scheduler.max_waiting)
            watched.is_checked = True

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> bool:
        # whoever can decode, and stays, has a token more after each iteration
        decoding = {
            one: len(one.reader.chunks)
            for one in self.requests
            if one.job.steps is not None and one.job.is_active and not any(ask.feed.is_prompt for ask in one.job.asks)
        }
        served = [job for job in self.scheduler.running if job.is_active][: self.scheduler.max_running]
        is_busy = self.scheduler.step()
        for one, count in decoding.items():
            if one.job in served and one.job not in self.scheduler.waiting and not one.is_over:
                assert len(one.reader.chunks) > count
        return is_busy

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule(data=st.data(), how=st.sampled_from(["cancel", "leave", "stop reading", "read again"]))
    def callers_act(self, data: st.DataObject, how: str) -> None:
        live = [one for one in self.requests if not one.is_over]
        if not live:
            return
        one = data.draw(st.sampled_from(live))
        if how == "stop reading":
            one.reader.is_reading = False
        elif how == "read again":
            one.reader.resume()
        else:
            one.job.cancel.cancel()
            one.reader.is_reading &= how == "cancel"

    @rule(runs=st.integers(1, 9))
    def the_device_fails(self, runs: int) -> None:
        self.fails_in = runs

    @precondition(lambda self: len(self.requests) > 4)
    @rule(is_meant=st.sampled_from([False] * 7 + [True]))
    def close(self, is_meant: bool) -> None:
        if is_meant and not self.is_closed:
            self.is_closed = True
            runner_module._close(SimpleNamespace(leave=lambda one: None), self.scheduler, self.pool)  # type: ignore[arg-type]
            assert all(one.is_over for one in self.requests)
            assert self.engine.closed

    @invariant()
    def what_came_is_what_comes_alone(self) -> None:
        for one in getattr(self, "requests", []):
            tokens = one.reader.tokens
            assert tokens == one.expected[: len(tokens)]
            if not one.is_over or one.is_checked:
                continue
            one.is_checked = True
            (error,) = one.reader.ends
            if error is not None:
                assert isinstance(error, DeviceError)
                assert one.may_fail
            elif one.reader.reason == "timeout":
                assert self.clock.now_s >= one.job.deadline_s
            elif one.reader.reason == "cancelled":
                assert one.job.cancel.cancelled
            else:
                assert one.reader.reason in ("length", "context")
                assert tokens == one.expected

    @invariant()
    def each_request_is_in_one_place(self) -> None:
        if not hasattr(self, "requests"):
            return
        scheduler = self.scheduler
        jobs = [*scheduler.waiting, *scheduler.running]
        assert len(set(map(id, jobs))) == len(jobs)
        assert {id(job) for job in jobs} == {id(one.job) for one in self.requests if not one.is_over}
        running = [sequence for sequence in self.pool.sequences if sequence.is_running]
        assert len(running) == sum(job.steps is not None for job in jobs)

    def teardown(self) -> None:
        if not hasattr(self, "requests"):
            return
        try:
            self.fails_in = 0
            for one in self.requests:
                one.reader.resume()
            work = sum(len(one.expected) + 30 for one in self.requests if not one.is_over)
            for _ in range(10 + 8 * work):
                if not self.step():
                    break
            self.what_came_is_what_comes_alone()
            assert all(one.is_over for one in self.requests)
            assert not self.scheduler.waiting
            assert not self.scheduler.running
            open_sessions = [session for session in self.engine.sessions if not session.closed]
            assert len(open_sessions) <= (0 if self.is_closed else len(self.kept) + 1)
            assert not any(sequence.is_running for sequence in self.pool.sequences)
            assert not any(sequence.evicted or sequence._swapped for sequence in self.pool.sequences)
            self.pool.close()
            assert self.engine.closed
            assert len(self.engine.threads) == 1
        finally:
            self._patched.__exit__(None, None, None)


def test_any_schedule_gives_each_request_its_own_tokens_and_frees_their_kv() -> None:
    run_state_machine_as_test(Schedules, settings=settings(stateful_step_count=30))


@pytest.mark.slow
def test_many_schedules_do() -> None:
    """With EMBEDLLM_SCHEDULES=10000 in the environment about four minutes."""
    count = int(os.environ.get("EMBEDLLM_SCHEDULES", "500"))
    run_state_machine_as_test(Schedules, settings=settings(max_examples=count, stateful_step_count=30))


# --- one by one


def test_one_iteration_takes_a_step_of_all_replies_in_as_few_runs_as_there_can_be() -> None:
    engine = FakeBatchEngine(whole_history, max_batch=4)
    runner = direct(engine)
    readers = [submit(runner, request([which], 20))[1] for which in range(6)]
    while not all(reader.tokens for reader in readers):
        runner.scheduler.step()
    engine.runs.clear()
    before = [len(reader.tokens) for reader in readers]
    runner.scheduler.step()
    assert engine.runs == [4, 2]
    assert [len(reader.tokens) for reader in readers] == [count + 1 for count in before]
    run_to_the_end(runner)
    assert [reader.tokens for reader in readers] == [alone(which, count=20) for which in range(6)]


@pytest.mark.parametrize(("stepping", "piece"), [(1, 8), (4, 16), (8, 32)])  # of 32 beside eight
@pytest.mark.parametrize("mixes", [False, True])
def test_a_long_prompt_is_read_in_pieces_beside_the_steps_of_others(mixes: bool, stepping: int, piece: int) -> None:
    engine = FakeBatchEngine(whole_history, max_batch=9, mixes_lengths=mixes, prompt_budget=32, context=256, chunk=64)
    runner = direct(engine)
    readers = [submit(runner, request([which], 60))[1] for which in range(stepping)]
    while not all(reader.tokens for reader in readers):
        runner.scheduler.step()
    submit(runner, request([2] * 200, 1))
    engine.runs.clear()
    for _ in range(5):
        before = [len(reader.tokens) for reader in readers]
        runner.scheduler.step()
        assert [len(reader.tokens) for reader in readers] == [count + 1 for count in before]
    assert [len(tokens) for tokens in engine.sessions[-1].fed] == [piece] * 5
    assert engine.runs == [stepping + mixes] * 5 * (stepping + mixes > 1)
    run_to_the_end(runner)


def test_a_long_prompt_is_read_in_pieces_beside_the_steps_of_another_model_on_the_device() -> None:
    """And in whole chunks once nothing is decoded there."""
    engines = [FakeBatchEngine(whole_history, max_batch=9, prompt_budget=32, context=256, chunk=64) for _ in range(2)]
    decodes, reads = (direct(engine) for engine in engines)
    hosted, inbox = [decodes.scheduler, reads.scheduler], SimpleQueue[Work | None]()
    inbox.put(lambda: None)
    _, reader = submit(decodes, request([1], 5))
    while not reader.tokens:
        assert _turn(inbox, hosted)
    submit(reads, request([2] * 200, 1))
    while any(scheduler.running or scheduler.waiting for scheduler in hosted):
        assert _turn(inbox, hosted)
    fed = [len(tokens) for tokens in engines[1].sessions[-1].fed]
    assert fed[:3] == [8] * 3
    assert 64 in fed
    assert sum(fed) == 200


def test_pieces_that_the_run_of_the_steps_has_no_row_for_are_read_when_the_steps_are_over() -> None:
    found: list[list[int]] = []  # tokens that the readers have, while each piece is read
    engine = FakeBatchEngine(whole_history, max_batch=3, mixes_lengths=True, prompt_budget=32, context=256, chunk=64)
    runner = direct(engine)
    readers = [submit(runner, request([which], 60))[1] for which in range(3)]
    while not all(reader.tokens for reader in readers):
        runner.scheduler.step()
    submit(runner, request([2] * 20, 1))
    engine.during_feed = lambda session: found.append([len(reader.tokens) for reader in readers])
    before = [len(reader.tokens) for reader in readers]
    engine.runs.clear()
    runner.scheduler.step()
    assert (engine.runs, found) == ([3], [[count + 1 for count in before]])
    assert [len(tokens) for tokens in engine.sessions[-1].fed] == [12]
    run_to_the_end(runner)


def test_a_prompt_alone_is_read_in_pieces_of_the_engine_s_size() -> None:
    engine = FakeBatchEngine(whole_history, context=256, chunk=64)
    runner = direct(engine)
    submit(runner, request(range(100), 1))
    run_to_the_end(runner)
    assert [len(piece) for piece in engine.sessions[0].fed] == [64, 36]


def test_prompts_about_as_long_are_read_in_one_run_and_others_alone() -> None:
    engine = FakePromptEngine(whole_history, context=256, chunk=64, prompt_budget=64)
    runner = direct(engine)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [9] * 10, [3], [4] * 15, [5] * 9, [6] * 11]
    readers = [submit(runner, request(prompt, 3))[1] for prompt in prompts]
    run_to_the_end(runner)
    assert [reader.tokens for reader in readers] == [alone(*prompt, count=3) for prompt in prompts]
    assert engine.reads == [[9, 10, 15, 9]]  # and the last by itself


def test_they_are_served_by_priority_and_the_time_that_they_have_waited() -> None:
    with clocked() as clock:
        runner = direct(FakeEngine(whole_history), max_running=1)
        submit(runner, request([9], 3))
        runner.scheduler.step()
        jobs: list[Job] = []
        for priority, at_s in ((0, 0.0), (1, 0.0), (-1, 5.0), (1, 6.0), (0, PRIORITY_S + 1)):
            clock.now_s = at_s
            jobs.append(submit(runner, request([9], 3, priority=priority))[0])
        assert runner.scheduler.waiting == [jobs[at] for at in (2, 0, 1, 4, 3)]


def test_a_full_queue_is_said_with_its_numbers() -> None:
    runner = direct(FakeEngine(whole_history), max_running=1, max_waiting=1)
    first = [submit(runner, request([1]))[1]]
    runner.scheduler.step()
    first.append(submit(runner, request([2]))[1])
    _, refused = submit(runner, request([3]))
    (error,) = refused.ends
    assert isinstance(error, Busy)
    assert (error.running, error.waiting) == (1, 1)
    first.append(submit(runner, request([3], is_rejectable=False))[1])
    run_to_the_end(runner)
    assert [reader.tokens for reader in first] == [alone(which, count=3) for which in (1, 2, 3)]


@pytest.mark.parametrize("has_memory", [True, False])
def test_the_queue_is_bounded_when_requests_come_at_once_and_when_memory_keeps_them_waiting(has_memory: bool) -> None:
    runner = direct(FakeEngine(whole_history, context=32), max_running=4, max_waiting=2,
                    kv_tokens=None if has_memory else 32)  # fmt: skip
    readers = [submit(runner, request([which]))[1] for which in range(10)]
    assert sum(isinstance(error, Busy) for reader in readers for error in reader.ends) == 4
    runner.scheduler.step()
    assert len(runner.scheduler.running) == (4 if has_memory else 1)
    readers += [submit(runner, request([which]))[1] for which in range(10)]
    assert len(runner.scheduler.waiting) == (2 if has_memory else 5)


def test_a_run_that_fails_ends_those_that_were_part_of_it() -> None:
    engine = FakeBatchEngine(whole_history, max_batch=2, context=128)
    runner = direct(engine)
    readers = [submit(runner, request([which], 9))[1] for which in range(4)]
    for _ in range(4):
        runner.scheduler.step()

    def fail(sessions: Sequence[FakeSession]) -> None:
        if engine.sessions[0] in sessions:
            raise DeviceError("out of memory")

    engine.during_run = fail
    run_to_the_end(runner)
    assert [type(reader.ends[0]) for reader in readers] == [DeviceError, DeviceError, type(None), type(None)]
    assert [reader.tokens for reader in readers[2:]] == [alone(which, count=9) for which in (2, 3)]
    assert not any(sequence.is_running for sequence in runner.sequences.sequences)


def test_a_run_that_one_of_them_interrupts_goes_on_with_the_others() -> None:
    """An engine may feed one alone in it, whose request is cancelled meanwhile."""
    engine = FakeBatchEngine(whole_history, max_batch=4, context=128)
    runner = direct(engine)
    readers = [submit(runner, request([which], 9))[1] for which in range(3)]
    for _ in range(4):
        runner.scheduler.step()

    def interrupts(sessions: Sequence[FakeSession]) -> None:
        if engine.sessions[0] in sessions:
            raise Interrupted

    engine.during_run, engine.during_feed = interrupts, lambda session: interrupts([session])
    run_to_the_end(runner)
    assert readers[0].reason == "cancelled"
    assert [reader.tokens for reader in readers[1:]] == [alone(which, count=9) for which in (1, 2)]


class NotedMasks:
    """A constraint that allows all tokens, and notes when it computes what it allows and when logits are asked for."""

    is_done = is_stop_allowed = False

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.is_ready = False

    def prepare(self) -> None:
        if not self.is_ready:
            self.events.append("mask")
        self.is_ready = True

    def allowed(self, logits: Logits) -> Logits:
        self.prepare()
        self.events.append("read")
        return logits

    def note(self, token: int) -> None:
        self.is_ready = False


def test_masks_are_computed_between_the_launch_of_a_step_and_the_first_look_at_its_logits() -> None:
    events: list[str] = []
    engine = FakeBatchEngine(whole_history, during_run=lambda sessions: events.append("run"))
    runner = direct(engine)
    readers = [submit(runner, request([which], 4, constraint=NotedMasks(events)))[1] for which in range(3)]
    while not all(reader.tokens for reader in readers):
        runner.scheduler.step()
    events.clear()
    runner.scheduler.step()
    assert events == ["run", *["mask"] * 3, *["read"] * 3]
    run_to_the_end(runner)
    assert [reader.tokens for reader in readers] == [alone(which, count=4) for which in range(3)]


def test_a_mask_that_cannot_be_computed_ends_its_request_only() -> None:
    class Complex(NotedMasks):
        def prepare(self) -> None:
            raise ValueError("the grammar became too complex")

    runner = direct(FakeBatchEngine(whole_history))
    _, failed = submit(runner, request([1], 4, constraint=Complex([])))
    _, other = submit(runner, request([2], 4))
    run_to_the_end(runner)
    assert [str(error) for error in failed.ends] == ["the grammar became too complex"]
    assert other.tokens == alone(2, count=4)


# --- prefixes that several prompts have


LONG = [which % 7 for which in range(48)]


@pytest.mark.parametrize("is_batch", [True, False])
def test_of_prompts_that_come_together_the_first_reads_their_prefix_for_all(is_batch: bool) -> None:
    engine = SwappingEngine(whole_history, capacity_step=4, context=64, max_batch=8 if is_batch else 1)
    runner = Runner(engine, Bytes(), is_direct=True, prefix_cache=PrefixCache(0))
    readers = [submit(runner, request([*LONG, which]))[1] for which in range(3)]
    run_to_the_end(runner)
    assert [reader.tokens for reader in readers] == [alone(*LONG, which) for which in range(3)]
    assert sum(len(piece) for session in engine.sessions for piece in session.fed) == len(LONG) + 3 * (1 + 2)


def test_who_waits_for_a_prefix_goes_on_when_its_reader_ends_and_keeps_no_other_waiting() -> None:
    engine = SwappingEngine(whole_history, capacity_step=4, context=64, chunk=4)
    runner = Runner(engine, Bytes(), is_direct=True, prefix_cache=PrefixCache(0))
    first, _ = submit(runner, request(LONG))
    second, reader = submit(runner, request([*LONG, 1]))
    third, other = submit(runner, request([9] * 40))
    runner.scheduler.step()
    assert runner.scheduler.running == [first, third]
    assert runner.scheduler.waiting == [second]
    first.cancel.cancel()
    runner.scheduler.step()
    assert second in runner.scheduler.running
    run_to_the_end(runner)
    assert (reader.tokens, other.tokens) == (alone(*LONG, 1), alone(*[9] * 40))


def test_a_request_waits_for_no_prefix_of_one_that_came_after_it() -> None:
    """Else it might wait for ever, for one after the other."""
    engine = SwappingEngine(whole_history, capacity_step=4, context=64, chunk=4)
    runner = Runner(engine, Bytes(), is_direct=True, prefix_cache=PrefixCache(0), max_running=1)
    _, unread = submit(runner, request([5], 20), is_reading=False)
    run_to_the_end(runner)  # it is paused, and runs again when it is read
    runner.scheduler.max_running = 2
    waiting, _ = submit(runner, request(LONG))
    waiting.rank = 1.0
    later, _ = submit(runner, request([*LONG, 1]))
    later.rank = 2.0
    runner.scheduler.waiting.reverse()
    runner.scheduler.step()
    assert {waiting, later} <= set(runner.scheduler.running)
    assert unread.is_full


# --- memory


@pytest.mark.parametrize("kind", [FakeBatchEngine, SwappingEngine])
def test_what_has_no_memory_is_preempted_and_goes_on_where_it_was(kind: type[FakeBatchEngine]) -> None:
    engine = kind(whole_history, capacity_step=4, context=64)
    runner = direct(engine, kv_tokens=64)
    readers = [submit(runner, request([which] * 10, 30))[1] for which in range(3)]
    run_to_the_end(runner)
    assert scheduler_statistics(runner.scheduler, runner.sequences).preempted > 0
    assert [reader.tokens for reader in readers] == [alone(*[which] * 10, count=30) for which in range(3)]
    recomputed = sum(len(piece) for session in engine.sessions for piece in session.fed) - 3 * 39
    assert (recomputed == 0) == (kind is SwappingEngine)


def test_conversations_between_two_turns_give_their_kv_before_a_request_waits() -> None:
    """The least recently used first, and only as many as it takes."""
    runner = direct(FakeEngine(whole_history, capacity_step=4), kv_tokens=64)
    kept = [runner.sequences.new() for _ in range(3)]
    for which in (1, 2, 0):
        submit(runner, request([which] * 12), kept[which])
        run_to_the_end(runner)
    running, _ = submit(runner, request([7] * 4, 8))
    runner.scheduler.step()
    waiting, _ = submit(runner, request([8] * 14, 3))
    runner.scheduler.step()
    assert (running.steps, waiting.queued_s) != (None, 0.0)
    assert waiting in runner.scheduler.running
    assert [len(sequence.tokens) for sequence in kept] == [14, 0, 14]
    run_to_the_end(runner)
    _, again = submit(runner, request([1] * 12), kept[1])
    run_to_the_end(runner)
    assert again.tokens == alone(*[1] * 12)
    assert runner.scheduler.preempted == 0


def test_a_request_alone_takes_the_kv_of_conversations_rather_than_more_than_there_is() -> None:
    runner = direct(FakeEngine(whole_history, capacity_step=4), kv_tokens=64)
    kept = [runner.sequences.new() for _ in range(2)]
    submit(runner, request([1] * 40), kept[0])
    run_to_the_end(runner)
    _, reader = submit(runner, request([2] * 40), kept[1])
    run_to_the_end(runner)
    assert reader.tokens == alone(*[2] * 40)
    assert (kept[0].tokens, len(kept[1].tokens)) == ([], 42)


def test_a_turn_waits_with_the_kv_that_it_goes_on_from() -> None:
    runner = direct(FakeEngine(whole_history, capacity_step=4), kv_tokens=64)
    kept = runner.sequences.new()
    submit(runner, request([1] * 30), kept)
    run_to_the_end(runner)
    submit(runner, request([2] * 8, 20))
    runner.scheduler.step()
    turn, reader = submit(runner, request([*[1] * 30, *alone(*[1] * 30, count=2), 5]), kept)
    runner.scheduler.step()
    assert turn in runner.scheduler.running  # its own KV is not counted again, nor freed
    assert len(kept.tokens) >= 32
    run_to_the_end(runner)
    assert reader.tokens == alone(*[1] * 30, *alone(*[1] * 30, count=2), 5)


def test_who_is_not_read_gives_its_memory_to_who_is() -> None:
    """Else a call within the loop over a stream would wait for that stream."""
    runner = direct(FakeEngine(whole_history, capacity_step=4), kv_tokens=64)
    _, outer = submit(runner, request([1] * 40, 20), is_reading=False)
    run_to_the_end(runner)
    assert outer.is_full
    _, inner = submit(runner, request([2] * 40, 20))
    run_to_the_end(runner)
    assert inner.tokens == alone(*[2] * 40, count=20)
    outer.resume()
    run_to_the_end(runner)
    assert outer.tokens == alone(*[1] * 40, count=20)


def test_what_waits_unread_keeps_no_other_from_its_place() -> None:
    runner = direct(FakeEngine(whole_history, capacity_step=4), kv_tokens=64)
    _, unread = submit(runner, request([1] * 40, 20), is_reading=False)
    run_to_the_end(runner)
    long, _ = submit(runner, request([2] * 40, 20))
    for _ in range(6):
        runner.scheduler.step()
    short, reader = submit(runner, request([3], 2))
    runner.scheduler.step()
    assert long in runner.scheduler.running
    run_to_the_end(runner)
    assert (reader.tokens, unread.ends) == (alone(3, count=2), [])
    assert short not in runner.scheduler.waiting


def test_what_ends_while_it_is_preempted_leaves_nothing_behind() -> None:
    engine = SwappingEngine(whole_history, capacity_step=4)
    runner = direct(engine, kv_tokens=64)
    kept = runner.sequences.new()
    submit(runner, request([1] * 20, 40))
    job, reader = submit(runner, request([2] * 20, 40), kept)
    while not runner.scheduler.preempted:
        runner.scheduler.step()
    assert kept.evicted
    job.cancel.cancel()
    runner.scheduler.step()
    assert reader.reason == "cancelled"
    assert (kept.evicted, kept._swapped, kept.is_running) == ([], [], False)
    run_to_the_end(runner)
    _, again = submit(runner, request([2] * 20, 10), kept)
    run_to_the_end(runner)
    assert again.tokens == alone(*[2] * 20, count=10)


@pytest.mark.parametrize("when", ["evict", "recall"])
def test_memory_that_cannot_be_moved_ends_that_request_only(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CachedSequence) -> None:
        raise DeviceError("cannot copy")

    monkeypatch.setattr(CachedSequence, when, fail)
    runner = direct(SwappingEngine(whole_history, capacity_step=4), kv_tokens=64)
    readers = [submit(runner, request([which] * 20, 30))[1] for which in range(2)]
    run_to_the_end(runner)
    assert readers[0].tokens == alone(*[0] * 20, count=30)
    assert isinstance(readers[1].ends[0], DeviceError)


# --- a request's own code: a logits processor, say, that calls the model


def calling(runner: Runner, sequence: CachedSequence, call: Callable[[], object]) -> tuple[Job, Reader]:
    """A request whose own code makes a call between two feeds."""

    def steps(job: Job) -> Steps:
        with runner.sequences.reserve(sequence):
            yield Feed(sequence, [1])
            call()
            yield Feed(sequence, [2])

    reader = Reader()
    job = Job(begin=steps, outbox=reader, cancel=Cancel(), unstarted=lambda job: None, prompt=())
    runner.scheduler.submit(job)
    return job, reader


@pytest.mark.parametrize("iterations", [1, 2, 50])
@pytest.mark.parametrize("kind", [FakeEngine, FakeBatchEngine])
def test_iterations_within_one_feed_nothing_twice(iterations: int, kind: type[FakeEngine]) -> None:
    runner = direct(kind(whole_history, context=128, chunk=8))
    kept = runner.sequences.new()
    _, caller = calling(runner, kept, lambda: [runner.scheduler.step() for _ in range(iterations)])
    readers = [submit(runner, request([which] * 40, 5))[1] for which in range(3)]
    run_to_the_end(runner)
    assert [reader.tokens for reader in readers] == [alone(*[which] * 40, count=5) for which in range(3)]
    assert caller.ends == [None]
    assert kept.tokens == [1, 2]


def test_what_is_cancelled_within_an_iteration_is_not_fed_by_it() -> None:
    engine = FakeEngine(whole_history, context=128, chunk=8)
    runner = direct(engine)
    kept, other = runner.sequences.new(), runner.sequences.new()

    def cancel() -> None:
        job.cancel.cancel()
        runner.scheduler.step()
        assert not other.is_running
        other.forget_from(0)

    calling(runner, kept, cancel)
    job, reader = submit(runner, request([3] * 40, 5), other)
    run_to_the_end(runner)
    assert reader.reason == "cancelled"
    assert other.tokens == []


def test_closing_from_a_request_s_own_code_ends_it_and_frees_the_engine_after_it() -> None:
    engine = FakeEngine(whole_history)
    runner = direct(engine)

    def close() -> None:
        runner.scheduler.end_all()
        runner.sequences.close()
        assert not engine.closed

    _, caller = calling(runner, runner.sequences.new(), close)
    _, other = submit(runner, request([1], 9))
    run_to_the_end(runner)
    assert len(caller.ends) == 1
    assert other.reason == "cancelled"
    assert engine.closed


def test_what_comes_after_the_end_is_refused() -> None:
    """Its caller may have looked before."""
    runner = direct(FakeEngine(whole_history))
    runner.scheduler.end_all()
    _, reader = submit(runner, request([1]))
    assert [str(error) for error in reader.ends] == ["this model was closed"]


# --- draft models


def test_kv_of_a_draft_model_is_not_taken_in_place_of_its_request_s() -> None:
    runner = direct(FakeEngine(whole_history, capacity_step=4), kv_tokens=32)
    draft = direct(FakeEngine(whole_history)).sequences.new()
    draft.feed([1, 2, 3])
    sequences = [runner.sequences.new(), runner.sequences.new()]

    def steps(job: Job) -> Steps:
        yield Feed(sequences[1], [5] * 20, is_prompt=True)
        yield Feed(draft, [4])

    submit(runner, request([1] * 20, 3), sequences[0])
    job = Job(begin=steps, outbox=Reader(), cancel=Cancel(), unstarted=lambda job: None, prompt=())
    runner.scheduler.submit(job)
    run_to_the_end(runner)
    assert draft.tokens == [1, 2, 3, 4]
    assert not draft.evicted
