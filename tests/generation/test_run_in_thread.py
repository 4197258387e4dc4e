"""Asynchronous twins of calls that block: the same results, beside the event loop, and cancelled with their task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from embedllm import Cancel, Completion, ContextFull, Conversation, Message, Model, Sampling, arun_tools, load
from embedllm.generation.completion import collect
from embedllm.generation.request import Request
from embedllm.generation.request_builder import RequestBuilder
from embedllm.generation.run_in_thread import run_in_thread
from embedllm.generation.runner import Runner
from embedllm.model import saved_conversation
from embedllm.openai.client import AsyncOpenAI

GREEDY = Sampling(temperature=0)
WAIT_S = 120  # only a test that fails waits so long
LOOP_S = 10  # as above, and there is no other thread that could be busy


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


# --- requests of coroutines: rendered and tokenized beside the event loop


class Gate:
    """Holds up RequestBuilder.request() until the event loop opens it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        request = RequestBuilder.request

        def wait(builder: RequestBuilder, *given: Any, **options: Any) -> Request:  # noqa: ANN401  # passed on
            self.reached.set()
            assert self.open.wait(LOOP_S), "the event loop does not go on"
            return request(builder, *given, **options)

        monkeypatch.setattr(RequestBuilder, "request", wait)

    async def wait_until_reached(self, task: asyncio.Task[Any]) -> None:
        while not self.reached.is_set() and not task.done():
            await asyncio.sleep(0)


MESSAGES: list[Message] = [{"role": "user", "content": "list all files"}]


@pytest.mark.parametrize(
    "call", ["agenerate", "achat", "asay", "aopen_stream", "aopen_stream of a turn", "arun_tools", "openai"]
)
def test_the_event_loop_goes_on_while_a_request_is_made(llm: Model, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> str:
        """Lists files."""
        return "none"

    async def read(model: Model | Conversation) -> Completion:
        prompt: Any = MESSAGES if isinstance(model, Model) else MESSAGES[0]
        return collect([chunk async for chunk in await model.aopen_stream(prompt, GREEDY, max_tokens=4)])

    async def created(client: AsyncOpenAI) -> Completion:
        stream = await client.chat.completions.create(messages=MESSAGES, stream=True, temperature=0, max_tokens=4)
        assert [chunk async for chunk in stream]
        return llm.chat(MESSAGES, GREEDY, max_tokens=4)

    async def main(talk: Conversation) -> Completion:
        calls: dict[str, Callable[[], Coroutine[Any, Any, Completion]]] = {
            "agenerate": lambda: llm.agenerate(MESSAGES, GREEDY, max_tokens=4),
            "achat": lambda: llm.achat(MESSAGES, GREEDY, max_tokens=4),
            "asay": lambda: talk.asay(MESSAGES[0], GREEDY, max_tokens=4),
            "aopen_stream": lambda: read(llm),
            "aopen_stream of a turn": lambda: read(talk),
            "openai": lambda: created(AsyncOpenAI(llm)),
            "arun_tools": lambda: arun_tools(llm, MESSAGES, [files], GREEDY, max_tokens=4),  # type: ignore[dict-item]
        }
        gate = Gate(monkeypatch)
        task = asyncio.create_task(calls[call]())
        await gate.wait_until_reached(task)
        gate.open.set()
        return await task

    with llm.conversation() as talk:
        reply = asyncio.run(main(talk))
    monkeypatch.undo()
    if call != "arun_tools":
        assert reply.tokens == llm.chat(MESSAGES, GREEDY, max_tokens=4).tokens


def test_requests_are_queued_in_the_order_of_the_calls(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the prompt of the first takes."""
    gate, queued = Gate(monkeypatch), []
    submit = Runner._submit

    def note(runner: Runner, request: Request, *given: Any) -> Any:  # noqa: ANN401  # passed on
        queued.append(len(request.prompt))
        return submit(runner, request, *given)

    monkeypatch.setattr(Runner, "_submit", note)

    async def main() -> None:
        calls = [asyncio.create_task(llm.agenerate([7] * count, max_tokens=1)) for count in (300, 3, 2, 1)]
        await gate.wait_until_reached(calls[0])
        gate.open.set()
        await asyncio.gather(*calls)

    asyncio.run(main())
    assert queued == [300, 3, 2, 1]


def test_a_task_that_is_cancelled_while_its_request_is_made_queues_none(
    llm: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, queued = Gate(monkeypatch), []
    monkeypatch.setattr(Runner, "_submit", lambda *given: queued.append(given))

    async def main() -> None:
        task = asyncio.create_task(llm.agenerate([7], max_tokens=1))
        await gate.wait_until_reached(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()

    asyncio.run(main())
    monkeypatch.undo()
    assert queued == []
    assert asyncio.run(llm.agenerate([7], GREEDY, max_tokens=1)).tokens


def test_what_is_wrong_with_a_request_is_raised_where_it_is_awaited(llm: Model) -> None:
    async def main() -> None:
        with pytest.raises(ContextFull, match="the prompt has 512 tokens"):
            await llm.aopen_stream([7] * 512)
        with pytest.raises(TypeError, match="there is no option 'tempratur'"):
            await llm.agenerate([7], tempratur=1)  # type: ignore[call-arg]
        with llm.conversation() as talk, pytest.raises(ValueError, match="max_tokens is 0"):
            await talk.aopen_stream("hi", max_tokens=0)

    asyncio.run(main())
