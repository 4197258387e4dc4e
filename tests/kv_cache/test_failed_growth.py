"""Memory that is used up while KV grows: the request fails, and those after it are answered as ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embedllm import DeviceError, Model, Sampling, load
from embedllm.backends.ort.session import OrtSession

GREEDY = Sampling(temperature=0)
SHORT, LONG = list(range(5, 15)), [5 + at % 200 for at in range(400)]


@pytest.fixture
def fails_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which the third buffer that grows finds no memory, once."""
    grow, left = OrtSession._grow, [-1]

    def limited(session: OrtSession, name: str, capacity: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError("Unable to allocate 5 GiB")
        grow(session, name, capacity)

    monkeypatch.setattr(OrtSession, "_grow", limited)
    return lambda: left.__setitem__(0, 3)


@pytest.fixture
def llm(tiny_package: Callable[..., Path]) -> Model:
    return load(tiny_package("llama", max_position_embeddings=2048), device="cpu", prefix_cache=0)


def test_the_requests_after_it_are_answered(llm: Model, fails_once: Callable[[], None]) -> None:
    with llm:
        short, long = (llm.generate(prompt, GREEDY, max_tokens=4).tokens for prompt in (SHORT, LONG))
        llm.release()
        assert llm.generate(SHORT, GREEDY, max_tokens=4).tokens == short
        fails_once()
        with pytest.raises(DeviceError, match="memory of this process is used up"):
            llm.generate([*SHORT, *LONG], GREEDY, max_tokens=4)
        assert llm.generate(SHORT, GREEDY, max_tokens=4).tokens == short
        assert llm.generate(LONG, GREEDY, max_tokens=4).tokens == long


def test_a_conversation_goes_on(llm: Model, fails_once: Callable[[], None]) -> None:
    with llm, llm.conversation() as chat:
        first = chat.say("one", GREEDY, max_tokens=4)
        fails_once()
        with pytest.raises(DeviceError, match="memory of this process is used up"):
            chat.say("word " * 200, GREEDY, max_tokens=4)
        again = chat.say("two", GREEDY, max_tokens=4)
        assert len(chat.messages) == 4
        with llm.conversation() as other:
            assert other.say("one", GREEDY, max_tokens=4).text == first.text
            assert other.say("two", GREEDY, max_tokens=4).text == again.text


def test_the_requests_after_cached_kv_found_no_room_are_answered(
    tiny_package: Callable[..., Path], fails_once: Callable[[], None]
) -> None:
    with load(tiny_package("llama", max_position_embeddings=2048), device="cpu") as llm:
        long = llm.generate(LONG, GREEDY, max_tokens=4).tokens
        llm.generate(SHORT, GREEDY, max_tokens=4)  # the KV of the long prompt is in the cache from here on
        llm.runner.call(llm.runner.sequences.take([0]).free)  # the next one has room for a few tokens
        fails_once()
        with pytest.raises(DeviceError, match="memory of this process is used up"):
            llm.generate(LONG, GREEDY, max_tokens=4)
        assert llm.generate(LONG, GREEDY, max_tokens=4).tokens == long


def test_the_calls_after_it_are_answered_without_a_thread(
    tiny_package: Callable[..., Path], fails_once: Callable[[], None]
) -> None:
    folder = tiny_package("llama", max_position_embeddings=2048)
    with load(folder, device="cpu", prefix_cache=0, threaded=False) as llm:
        long = llm.generate(LONG, GREEDY, max_tokens=4).tokens
        llm.release()
        llm.generate(SHORT, GREEDY, max_tokens=4)
        fails_once()
        with pytest.raises(DeviceError, match="memory of this process is used up"):
            llm.generate(LONG, GREEDY, max_tokens=4)
        assert llm.generate(LONG, GREEDY, max_tokens=4).tokens == long


def test_a_conversation_without_memory_says_so(llm: Model, fails_once: Callable[[], None]) -> None:
    with llm:
        fails_once()
        with pytest.raises(DeviceError, match="memory of this process is used up"):
            llm.conversation(when_full="shift")


def test_kv_that_there_is_no_memory_to_keep_is_computed_again(
    tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(session: OrtSession, spans: object) -> object:
        raise MemoryError("Unable to allocate 5 GiB")

    with load(tiny_package("llama", max_position_embeddings=2048), device="cpu") as llm:
        long = llm.generate(LONG, GREEDY, max_tokens=4).tokens
        monkeypatch.setattr(OrtSession, "export_stored", export)
        pool = llm.runner.sequences
        assert llm.generate(SHORT, GREEDY, max_tokens=4).finish_reason == "length"  # in place of the long one
        pool.kv_tokens = 600
        assert llm.runner.call(lambda: pool.make_room(600))  # as for a request that waits, beside those that run
        assert not pool.sequences
        assert llm.generate(LONG, GREEDY, max_tokens=4).tokens == long
