"""The thread that owns a device: any thread and any task calls it, is interrupted, forks or ends; on fakes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from embedllm.cancel import Cancel
from embedllm.errors import DeviceError
from embedllm.generation.engine_loop import EngineLoop
from embedllm.generation.request import Request, reject_first_only
from embedllm.generation.runner import Runner
from embedllm.sampling.options import Sampling
from embedllm.types import Logits
from tests.support.fakes import (
    END,
    Bytes,
    FakeBatchEngine,
    FakeEngine,
    alone,
    own_name,
    taking_turns,
    tokens,
    whole_history,
)
from tests.support.interrupts import Interrupts

ROOT = Path(__file__).parents[2]
WAIT_S = 120  # only a test that fails waits so long


def request(*prompt: int, max_tokens: int = 3) -> Request:
    return Request(prompt=prompt, sampling=Sampling(temperature=0), max_tokens=max_tokens, stop=(),
                   stop_tokens=frozenset({END}), top_count=0)  # fmt: skip


def generate(runner: Runner, *prompt: int) -> list[int | None]:
    return tokens(list(runner.stream(request(*prompt), Cancel())))


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"embedllm-{name}"]


def until(is_true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end_s, "others did not come so far"
        time.sleep(0.001)


# --- calls


def test_work_is_done_in_the_loop_s_thread_and_what_it_gives_or_raises_comes_back() -> None:
    loop = EngineLoop.of(own_name())

    def fail() -> None:
        raise KeyError("gone")

    assert loop.call(threading.get_ident) != threading.get_ident()
    assert loop.call(lambda: loop.is_current)
    assert loop.call(lambda: loop.call(threading.get_ident)) == loop.call(threading.get_ident)
    with pytest.raises(KeyError, match="gone"):
        loop.call(fail)
    with pytest.raises(SystemExit):
        loop.call(sys.exit)
    assert loop.call(lambda: 3) == 3


def test_a_device_has_one_loop_and_others_have_their_own() -> None:
    name = own_name()
    assert EngineLoop.of(name) is EngineLoop.of(name)
    assert EngineLoop.of(own_name()) is not EngineLoop.of(name)


def test_what_is_posted_and_fails_is_logged_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    loop, done = EngineLoop.of(own_name()), threading.Event()
    loop.post(lambda: 1 // 0)
    loop.post(done.set)
    assert done.wait(WAIT_S)
    assert "division" in caplog.text


def test_finalizers_may_post_from_the_garbage_collector_in_any_thread() -> None:
    loop, done = EngineLoop.of(own_name()), threading.Event()

    class Finalized:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            loop.post(done.set)

    gc.collect()  # requests of direct models that other tests left: they end in this thread only
    Finalized()
    loop.call(gc.collect)  # in the loop's own thread, too
    assert done.wait(WAIT_S)


def test_a_scheduler_that_fails_ends_what_it_ran_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = Runner(FakeEngine(whole_history), Bytes())
    admit = runner.scheduler._admit
    fails = [True]

    def fail() -> None:
        if fails and runner.scheduler.waiting:
            fails.clear()
            raise AssertionError("a defect")
        admit()

    monkeypatch.setattr(runner.scheduler, "_admit", fail)
    with pytest.raises(DeviceError, match=r"the engine loop failed .*a defect"):
        list(runner.stream(request(1), Cancel()))
    assert "a defect" in caplog.text
    assert generate(runner, 1) == alone(1)


def test_a_reply_that_runs_ends_with_the_error_of_a_scheduler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(FakeEngine(whole_history), Bytes())
    stream = runner.stream(request(1, max_tokens=60), Cancel())
    next(stream)

    def fail() -> None:
        monkeypatch.undo()
        raise RuntimeError("out of handles")

    monkeypatch.setattr(runner.scheduler, "_make_room", fail)
    with pytest.raises(DeviceError, match="out of handles"):
        list(stream)
    assert generate(runner, 1) == alone(1)


def test_several_streams_are_queued_at_once() -> None:
    """So that their time counts from the call, and a long prompt does not keep the others' replies back."""
    runner = Runner(FakeEngine(whole_history), Bytes(), max_running=2)
    prompts = [request(number, max_tokens=40) for number in (1, 2, 3)]
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    chunks = runner.stream_all(prompts, Cancel())
    place, chunk = next(chunks)
    found[place].append(chunk.token or 0)
    until(lambda: runner.call(lambda: len(runner.scheduler.running) + len(runner.scheduler.waiting)) == 3)
    for place, chunk in chunks:
        found[place].append(chunk.token or 0)
    assert [*found.values()] == [alone(number, count=40) for number in (1, 2, 3)]


def test_several_streams_that_are_left_end_all() -> None:
    runner = Runner(FakeEngine(whole_history), Bytes())
    chunks = runner.stream_all([request(number, max_tokens=10_000) for number in (1, 2)], Cancel())
    next(chunks)
    chunks.close()
    until(lambda: runner.call(lambda: not runner.scheduler.running))


def test_a_timeout_of_many_years_is_none() -> None:
    runner = Runner(FakeEngine(whole_history), Bytes())
    for timeout_s in (1e9, 1e12, 1e300):
        stream = runner.stream(replace(request(1, max_tokens=60), timeout_s=timeout_s), Cancel())
        assert next(stream).token == alone(1)[0]  # the rest is not read yet: the loop waits, for the timeout too
        time.sleep(0.02)
        assert tokens(list(stream)) == alone(1, count=60)[1:]


def test_a_reply_that_nobody_reads_ends_by_its_time() -> None:
    runner = Runner(FakeEngine(whole_history), Bytes())
    stream = runner.stream(replace(request(1, max_tokens=60), timeout_s=0.2), Cancel())
    next(stream)
    until(lambda: runner.call(lambda: not runner.scheduler.running))
    assert [*stream][-1].finish_reason == "timeout"


def test_two_devices_whose_models_draft_for_each_other_do_not_wait_for_one_another() -> None:
    """A loop that waits for the other's serves what the other wants of it."""
    here, there = EngineLoop.of(own_name()), EngineLoop.of(own_name())
    meeting = threading.Barrier(2)
    found: list[int] = []

    def ask(other: EngineLoop) -> None:
        meeting.wait(WAIT_S)  # both are in the middle of work of their own
        for _ in range(20):
            found.append(other.call(lambda: 1))

    threads = [
        threading.Thread(target=lambda one=one, other=other: one.call(lambda: ask(other)), daemon=True)
        for one, other in ((here, there), (there, here))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert found == [1] * 40


def test_processors_that_call_the_models_of_each_others_devices_do_not_wait_for_one_another() -> None:
    runners = [Runner(FakeEngine(whole_history), Bytes()) for _ in range(2)]
    meeting = threading.Barrier(2)
    found: list[list[int | None]] = []

    def calling(other: Runner) -> Request:
        def ask(logits: Logits, seen: Sequence[int]) -> Logits:
            if len(seen) == 1:
                meeting.wait(WAIT_S)  # both are in the middle of a step
                found.append(generate(other, 7, 8))
            return logits

        return replace(request(5), sampling=Sampling(temperature=0, processors=[ask]))

    def run(runner: Runner, other: Runner) -> None:
        found.append(tokens(list(runner.stream(calling(other), Cancel()))))

    pairs = [(runners[0], runners[1]), (runners[1], runners[0])]
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(map(str, found)) == sorted(map(str, [alone(5), alone(5), alone(7, 8), alone(7, 8)]))


# --- any thread, any task


@pytest.mark.parametrize("count", [100, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [FakeEngine, FakeBatchEngine])
def test_short_lived_threads_and_tasks_have_their_replies_and_one_thread_has_the_engine(
    kind: type[FakeEngine], count: int
) -> None:
    engine = kind(whole_history)
    runner = Runner(engine, Bytes(), max_waiting=2 * count)
    found: dict[int, list[int | None]] = {}

    def call(which: int) -> None:
        found[which] = generate(runner, which % 7, which % 5)

    threads = [threading.Thread(target=call, args=(which,)) for which in range(count)]
    for thread in threads:
        thread.start()

    async def acall(which: int) -> list[int | None]:
        return [chunk.token async for chunk in runner.astream(request(which % 5, which % 7), Cancel())]

    async def main() -> list[list[int | None]]:
        return await asyncio.gather(*(acall(which) for which in range(count)))

    assert asyncio.run(main()) == [alone(which % 5, which % 7) for which in range(count)]
    for thread in threads:
        thread.join(WAIT_S)
    assert [found[which] for which in range(count)] == [alone(which % 7, which % 5) for which in range(count)]
    runner.close()
    assert len(engine.threads) == 1
    assert threading.get_ident() not in engine.threads
    assert engine.closed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_threads_and_tasks_of_every_kind_all_come_to_their_end(seed: int) -> None:
    runner = Runner(FakeBatchEngine(whole_history), Bytes(), max_running=2, max_waiting=999)

    def work(which: int) -> None:
        random = Random(seed * 100 + which)
        for _ in range(12):
            cancel, ends = Cancel(), random.randrange(4)
            for at, _chunk in enumerate(runner.stream(request(1, random.randrange(5), max_tokens=50), cancel)):
                if at == ends:
                    random.choice([cancel.cancel, lambda: generate(runner, 4), gc.collect])()
                if random.random() < 0.1:
                    break

    async def task(which: int) -> None:
        random = Random(seed * 100 + 50 + which)
        for _ in range(8):
            stream = runner.astream(request(2, which, max_tokens=50), Cancel())
            try:
                async with asyncio.timeout(random.choice([0.003, WAIT_S])):
                    assert [chunk.token async for chunk in stream] == alone(2, which, count=50)
            except TimeoutError:
                continue
            async for _chunk in runner.astream(request(3), Cancel()):
                if random.random() < 0.5:
                    break

    async def tasks() -> None:
        await asyncio.gather(*(task(which) for which in range(6)))

    with taking_turns():
        threads = [threading.Thread(target=work, args=(which,)) for which in range(5)]
        for thread in threads:
            thread.start()
        asyncio.run(tasks())
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    gc.collect()
    check_is_free_and_right(runner)


def check_is_free_and_right(runner: Runner) -> None:
    """Nothing runs, nothing waits, nothing has a sequence but the pool; the next reply is right."""
    until(lambda: runner.call(lambda: not runner.scheduler.running and not runner.scheduler.waiting))
    assert not any(sequence.is_running for sequence in runner.call(lambda: runner.sequences.sequences))
    assert generate(runner, 6, 5, 4) == alone(6, 5, 4)
    engine = runner.engine
    assert isinstance(engine, FakeEngine)
    assert sum(not session.closed for session in engine.sessions) <= 1
    assert len(engine.threads) == 1


# --- ends


def test_a_runner_that_is_dropped_frees_its_engine_and_its_thread() -> None:
    engine = FakeEngine(whole_history)
    name = engine.device.name
    runner = Runner(engine, Bytes())
    assert generate(runner, 1) == alone(1)
    assert len(threads_of(name)) == 1
    del runner
    gc.collect()
    until(lambda: engine.closed and not threads_of(name))


def test_a_runner_that_is_dropped_in_the_middle_of_streams_does() -> None:
    engine = FakeEngine(whole_history)
    name = engine.device.name
    runner = Runner(engine, Bytes())
    streams: list[object] = [runner.stream(request(which, max_tokens=60), Cancel()) for which in range(3)]
    assert [next(stream) is not None for stream in streams] == [True] * 3  # type: ignore[call-overload]
    streams.append(streams)  # a cycle, as an exception and its frame are one
    del runner, streams
    gc.collect()
    until(lambda: engine.closed and not threads_of(name))
    assert all(session.closed for session in engine.sessions)


def test_models_of_a_device_share_its_thread_and_the_last_ends_it() -> None:
    name = own_name()
    engines = [FakeEngine(whole_history, name=name) for _ in range(2)]
    runners = [Runner(engine, Bytes()) for engine in engines]
    assert [generate(runner, 1) for runner in runners] == [alone(1)] * 2
    assert engines[0].threads == engines[1].threads
    runners.pop().close()
    assert generate(runners[0], 2) == alone(2)
    runners.clear()
    gc.collect()
    until(lambda: not threads_of(name))


def test_a_call_that_comes_while_the_model_is_closed_ends() -> None:
    for _ in range(50):
        runner = Runner(FakeEngine(whole_history), Bytes())
        ends: list[object] = []

        def call(runner: Runner = runner, ends: list[object] = ends) -> None:
            try:
                ends.append(list(runner.stream(request(1, max_tokens=60), Cancel()))[-1].finish_reason)
            except ValueError as error:
                ends.append(str(error))

        threads = [threading.Thread(target=call) for _ in range(4)]
        with taking_turns():
            for thread in threads:
                thread.start()
            runner.close()
            for thread in threads:
                thread.join(WAIT_S)
        assert len(ends) == 4
        assert set(ends) <= {"length", "cancelled", "context", "this model was closed"}


SCRIPT = """
import os, signal, sys, threading
from embedllm.cancel import Cancel
from embedllm.errors import DeviceError
from embedllm.generation.runner import Runner
from tests.generation.test_engine_loop import *
runner = Runner(engine := FakeEngine(whole_history), Bytes())
assert generate(runner, 1) == alone(1)
"""


def run_script(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SCRIPT + code], cwd=ROOT, capture_output=True, text=True,
                          timeout=WAIT_S, check=False)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "leaves",
    ["stream = runner.stream(request(1, max_tokens=60), Cancel()); next(stream)",
     "threading.Thread(target=lambda: list(runner.stream(request(1, max_tokens=60), Cancel())), daemon=True).start()",
     "next(runner.stream(request(1, max_tokens=60), Cancel())); runner.close()"],
)  # fmt: skip
def test_a_process_that_exits_in_the_middle_of_a_reply_ends_at_once(leaves: str) -> None:
    begun = "engine.during_feed = lambda session: session.stopping.wait(0.05)\n"
    done = run_script(begun + leaves + "\nprint('left', flush=True)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked here")
@pytest.mark.parametrize("is_running", [False, True])
def test_a_forked_process_is_refused_at_once_and_ends_and_its_parent_goes_on(is_running: bool) -> None:
    done = run_script(
        f"""
stream = runner.stream(request(1, max_tokens=60), Cancel())
{"next(stream)" if is_running else ""}
if not (child := os.fork()):
    uses = [lambda: generate(runner, 1), lambda: runner.call(int),
            lambda: list(runner.run_all([request(1)], Cancel()))]
    for use in uses:
        try:
            use()
        except DeviceError as error:
            assert "os.fork" in str(error)
        else:
            raise AssertionError("it worked")
    del stream
    runner.close()
    assert generate(Runner(FakeEngine(whole_history), Bytes()), 5) == alone(5)  # loaded in the child
    del runner
    print("child", flush=True)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert tokens(list(stream)) == alone(1, count=60)[{1 if is_running else 0}:]
assert generate(runner, 2) == alone(2)
print("parent")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "child\nparent\n", "")


# --- interrupts


def interrupt_at_any_moment(count: int) -> None:
    """A model is free and right after interrupts of all that it is used for."""
    random = Random(5)
    runner = Runner(engine := FakeBatchEngine(whole_history, context=64), Bytes())
    kept = runner.call(runner.sequences.new)

    def stream() -> None:
        for at, _ in enumerate(runner.stream(request(1, 2, max_tokens=40), Cancel())):
            if at == 20:
                break

    def batch() -> None:
        list(runner.run_all(reject_first_only([request(which, max_tokens=20) for which in range(6)]), Cancel()))

    def talk() -> None:
        list(runner.stream(request(3, 4, max_tokens=20), Cancel(), kept))

    def beams() -> None:
        runner.beam_search(request(1, max_tokens=8), Cancel(), beams=3, length_penalty=1.0, early_stopping=False)

    def load_and_close() -> None:
        Runner(FakeEngine(whole_history, name=engine.device.name), Bytes()).close()

    done = 0
    with Interrupts() as interrupts:  # not for asyncio, whose own handler of Ctrl-C cancels the task in place of it
        while done < count:
            use = random.choice([stream, stream, batch, talk, talk, beams, load_and_close])
            done += interrupts.during(use, random.random() * 0.004)
            if not done % 20:
                assert generate(runner, 1, 2, 3) == alone(1, 2, 3)
    gc.collect()
    until(lambda: runner.call(lambda: not runner.scheduler.running and not runner.scheduler.waiting))
    assert tokens(list(runner.stream(request(3, 4), Cancel(), kept))) == alone(3, 4)
    runner.call(lambda: runner.sequences.drop(kept))
    check_is_free_and_right(runner)
    runner.close()
    with pytest.raises(ValueError, match="this model was closed"):
        generate(runner, 1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer interrupts here")
@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_interrupts_at_any_moment_leave_a_model_that_is_free_and_right(count: int) -> None:
    """In a process of its own: an interrupt may come within whatever else this one has loaded."""
    code = f"from tests.generation.test_engine_loop import interrupt_at_any_moment as test; test({count})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_loop_that_has_ended_says_so_and_has_freed_its_models() -> None:
    runner = Runner(engine := FakeEngine(whole_history), Bytes())
    runner._loop.end()  # type: ignore[union-attr]  # as at the end of the process
    with pytest.raises(DeviceError, match="the process is ending"):
        generate(runner, 1)
    runner.close()
    assert engine.closed
