"""Cancelling on the real runtime: a reply, a prompt between two feeds and in the middle of one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from embedllm import Cancel, Chunk, Model, Sampling, load
from embedllm.backends.base import Interruptible
from embedllm.kv_cache.sequence_pool import CachedSequence
from embedllm.types import Logits

WAIT_S = 120  # a test that waits this long has failed
TEXT = "List all files that were changed today, and sort them by size."
LONG = [3 + place % 300 for place in range(6000)]
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def llm(tiny_package: Callable[..., Path]) -> Iterator[Model]:
    """A model with room for a prompt whose prefill can be interrupted in the middle."""
    with load(tiny_package("llama", max_position_embeddings=8192, num_hidden_layers=4), exact=True) as model:
        yield model


class Watched:
    """Feeds of every sequence, as they happen.

    act: called before the feed of that number, with the sequence.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[CachedSequence], None], *, at: int) -> None:
        self.sequences: list[CachedSequence] = []
        self._act = act
        self._at = at
        original = CachedSequence.feed

        def feed(sequence: CachedSequence, tokens: Sequence[int]) -> Logits:
            self.sequences.append(sequence)
            if len(self.sequences) == self._at:
                self._act(sequence)
            return original(sequence, tokens)

        monkeypatch.setattr(CachedSequence, "feed", feed)


def check_it_still_works(model: Model) -> None:
    with load(model.package.folder, exact=True) as other:
        expected = other.generate(LONG[:700], GREEDY, max_tokens=4)
    assert model.generate(LONG[:700], GREEDY, max_tokens=4).tokens == expected.tokens


def test_cancelling_from_another_thread_ends_a_reply(llm: Model) -> None:
    cancel, said = Cancel(), threading.Event()

    def other() -> None:
        assert said.wait(WAIT_S)
        cancel.cancel()

    thread = threading.Thread(target=other)
    thread.start()
    chunks: list[Chunk] = []
    for chunk in llm.stream(TEXT, Sampling(seed=3), max_tokens=50, stop_tokens=(), cancel=cancel):
        chunks.append(chunk)
        if len(chunks) == 4:
            said.set()
            thread.join(WAIT_S)
    assert 5 <= len(chunks) < 50  # a few were computed ahead
    assert (chunks[-1].finish_reason, chunks[-1].token) == ("cancelled", None)
    whole = llm.generate(TEXT, Sampling(seed=3), max_tokens=50, stop_tokens=())
    assert [chunk.token for chunk in chunks[:-1]] == list(whole.tokens[: len(chunks) - 1])


def test_cancelling_between_two_pieces_of_a_prompt_feeds_no_more(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    llm.release()  # so that the whole prompt is computed
    cancel = Cancel()
    watched = Watched(monkeypatch, lambda sequence: cancel.cancel(), at=3)
    completion = llm.generate(LONG, cancel=cancel)
    assert (completion.finish_reason, completion.text, completion.tokens) == ("cancelled", "", ())
    assert len(watched.sequences) == 3
    sequence = watched.sequences[0]
    assert sequence.session.position == len(sequence.tokens) == 2 * llm.runner.engine.chunk < len(LONG)
    check_it_still_works(llm)


@pytest.fixture
def in_one_piece(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole prompt is one run of the runtime, so that only an interruption within it can end it."""
    monkeypatch.setattr(llm.runner.engine, "chunk", 8192)
    llm.release()  # so that the whole prompt is computed


@pytest.mark.usefixtures("in_one_piece")
def test_cancelling_from_another_thread_ends_a_running_prefill(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel, begun = Cancel(), threading.Event()

    def other() -> None:
        assert begun.wait(WAIT_S)
        cancel.cancel()

    thread = threading.Thread(target=other)
    thread.start()
    watched = Watched(monkeypatch, lambda sequence: begun.set(), at=1)
    completion = llm.generate(LONG, cancel=cancel)
    thread.join(WAIT_S)
    assert completion.finish_reason == "cancelled"
    assert watched.sequences[0].session.position == 0
    check_it_still_works(llm)


@pytest.mark.usefixtures("in_one_piece")
def test_cancelling_a_task_ends_a_running_prefill(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    watched = Watched(monkeypatch, lambda sequence: begun.set(), at=1)

    async def main() -> None:
        task = asyncio.create_task(llm.agenerate(LONG))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert watched.sequences[0].session.position == 0

    asyncio.run(main())
    check_it_still_works(llm)


def test_a_switch_that_is_off_gives_nothing_and_spoils_nothing(llm: Model) -> None:
    cancel = Cancel()
    cancel.cancel()
    for _ in range(2):
        completion = llm.generate(TEXT, cancel=cancel)
        assert (completion.finish_reason, completion.tokens, completion.text) == ("cancelled", (), "")
    assert asyncio.run(llm.agenerate(TEXT, cancel=cancel)).finish_reason == "cancelled"
    check_it_still_works(llm)


def test_sessions_of_this_runtime_can_be_interrupted(llm: Model) -> None:
    assert isinstance(llm.runner.sequences.new().session, Interruptible)


@pytest.mark.parametrize(
    ("call", "prompt"),
    [
        ("generate", "list files"),
        ("stream", "list files"),
        ("generate_batch", ["list files"]),
        ("chat", [{"role": "user", "content": "list files"}]),
    ],
)
def test_what_is_no_switch_is_refused_before_the_call(call: str, prompt: object) -> None:
    with load("demo") as demo:
        with pytest.raises(TypeError, match=r"cancel is True; expected an embedllm\.Cancel"):
            getattr(demo, call)(prompt, cancel=True)
        with pytest.raises(TypeError, match=r"cancel is 'now'; expected an embedllm\.Cancel"):
            demo.conversation().say("list files", cancel="now")  # type: ignore[arg-type]  # wrong on purpose
