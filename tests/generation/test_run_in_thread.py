"""Asynchronous twins of calls that block: the same results, beside the event loop, and cancelled with their task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embedllm import Cancel, Completion, Model, Sampling, load
from embedllm.generation.run_in_thread import run_in_thread
from embedllm.model import saved_conversation

GREEDY = Sampling(temperature=0)
WAIT_S = 120  # only a test that fails waits so long


@pytest.fixture(scope="module")
def llm(tiny_package: Callable[..., Path]) -> Iterator[Model]:
    with load(tiny_package("llama", max_position_embeddings=512), exact=True) as model:
        yield model


def tokens(replies: list[Completion]) -> list[tuple[int, ...]]:
    return [reply.tokens for reply in replies]


# --- the thread


def test_what_the_work_gives_or_raises_is_given_or_raised() -> None:
    def fail(cancel: Cancel) -> None:
        raise KeyError("gone")

    assert asyncio.run(run_in_thread(lambda cancel: threading.current_thread().name)) != threading.current_thread().name
    with pytest.raises(KeyError, match="gone"):
        asyncio.run(run_in_thread(fail))


def test_cancelling_the_task_cancels_the_work_and_waits_for_it() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(cancel: Cancel) -> None:
        cancelled = threading.Event()
        with cancel.watching(lambda stop: cancelled.set() if stop else None):
            begun.set()
            assert cancelled.wait(WAIT_S)
        ended.set()
        raise ValueError("nobody hears of this")

    async def main() -> None:
        task = asyncio.create_task(run_in_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


def test_the_callers_switch_is_passed_on_and_not_switched_by_the_task() -> None:
    def work(own: Cancel) -> bool:
        cancelled = threading.Event()
        with own.watching(lambda stop: cancelled.set() if stop else None):
            cancel.cancel()
            return cancelled.wait(WAIT_S)

    cancel = Cancel()
    assert asyncio.run(run_in_thread(work, cancel))

    async def main() -> Cancel:
        other = Cancel()
        task = asyncio.create_task(run_in_thread(work, other))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return other

    assert not asyncio.run(main()).cancelled


# --- the calls of a model


def test_a_batch_is_the_one_of_the_blocking_call(llm: Model) -> None:
    prompts = ["list all files", "the quick brown fox", "hello", "sort them"]
    expected = llm.generate_batch(prompts, GREEDY, max_tokens=8)
    assert tokens(asyncio.run(llm.agenerate_batch(prompts, GREEDY, max_tokens=8))) == tokens(expected)
    with pytest.raises(ValueError, match="found one text"):
        asyncio.run(llm.agenerate_batch("hello"))


def test_several_replies_and_beams_are_those_of_the_blocking_calls(llm: Model) -> None:
    sampling = Sampling(seed=3)
    replies = asyncio.run(llm.agenerate_n("the quick", 3, sampling, max_tokens=8))
    assert tokens(replies) == tokens(llm.generate_n("the quick", 3, sampling, max_tokens=8))
    assert len(set(tokens(replies))) > 1
    beams = asyncio.run(llm.abeam_search("the quick", 3, length_penalty=0.5, max_tokens=6))
    assert tokens(beams) == tokens(llm.beam_search("the quick", 3, length_penalty=0.5, max_tokens=6))
    with pytest.raises(ValueError, match="beam_search has no 'stop'"):
        asyncio.run(llm.abeam_search("the quick", 3, stop="a"))


@pytest.mark.parametrize("call", ["agenerate_batch", "agenerate_n", "abeam_search"])
def test_cancelling_the_task_ends_the_replies_and_frees_what_they_used(
    llm: Model, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    take = llm.runner.sequences.take

    def noting(*arguments: object, **options: object) -> object:
        begun.set()
        return take(*arguments, **options)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(llm.runner.sequences, "take", noting)
    calls = {
        "agenerate_batch": lambda: llm.agenerate_batch(["a", "b"], GREEDY, max_tokens=500, stop_tokens=()),
        "agenerate_n": lambda: llm.agenerate_n("a", 50, GREEDY, max_tokens=500, stop_tokens=()),
        "abeam_search": lambda: llm.abeam_search("a", 4, max_tokens=500, stop_tokens=()),
    }

    async def main() -> None:
        task = asyncio.create_task(calls[call]())
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    while llm.runner.call(lambda: llm.runner.scheduler.running):  # until the step that runs is over
        pass
    assert not any(sequence.is_running for sequence in llm.runner.sequences.sequences)
    assert llm.generate("hello", GREEDY, max_tokens=3).tokens


def test_a_conversation_is_saved_and_opened(llm: Model, tmp_path: Path) -> None:
    async def main() -> None:
        with llm.conversation("Be brief.") as talk:
            talk.say("hello", GREEDY, max_tokens=6)
            await talk.asave(tmp_path / "one")
            talk.save(tmp_path / "two")
            expected = talk.say("and now?", GREEDY, max_tokens=6)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
        with await llm.aopen_conversation(tmp_path / "one", when_full="shift") as talk:
            assert talk.when_full == "shift"
            reply = await talk.asay("and now?", GREEDY, max_tokens=6)
            assert reply.tokens == expected.tokens
            assert reply.statistics.cached_tokens > 0

    asyncio.run(main())


def test_a_save_whose_task_is_cancelled_leaves_the_file_and_the_conversation(
    llm: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talk"
    pieces = saved_conversation._pieces
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: object) -> Iterator[object]:
        begun.set()
        assert go_on.wait(WAIT_S)
        return pieces(*arguments)  # type: ignore[arg-type]  # as they came

    async def main() -> None:
        with llm.conversation() as talk:
            talk.say("hello", GREEDY, max_tokens=6)
            talk.save(path)
            before = path.read_bytes()
            talk.say("and now?", GREEDY, max_tokens=6)
            with monkeypatch.context() as patch:
                patch.setattr(saved_conversation, "_pieces", slow)
                task = asyncio.create_task(talk.asave(path))
                while not begun.is_set():
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.sleep(0)
                go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert path.read_bytes() == before
            assert [entry.name for entry in tmp_path.iterdir()] == ["talk"]
            assert talk.say("go on", GREEDY, max_tokens=3).tokens

    asyncio.run(main())
