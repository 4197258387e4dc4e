"""A chat that remembers, on a tiny random package."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from embedllm import (
    Cancel,
    Completion,
    ContextFull,
    Conversation,
    DeviceError,
    Message,
    Model,
    Sampling,
    TemplateError,
    load,
)
from embedllm.generation.options import WhenFull
from embedllm.generation.outbox import AHEAD
from embedllm.kv_cache.sequence_pool import CachedSequence
from tests.support.tiny import TEMPLATE

SAMPLING = Sampling(seed=11)
TURNS = ("hello", "list all files", "sort them by size")


@pytest.fixture(scope="module")
def llm(tiny_package: Callable[..., Path]) -> Iterator[Model]:
    """Float activations, so that a reply does not depend on how much of its prompt was held."""
    with load(tiny_package("llama", max_position_embeddings=512), exact=True) as model:
        yield model


def roles(conversation: Conversation) -> str:
    """The roles' first letters."""
    return "".join(str(message["role"])[0] for message in conversation.messages)


def held_by(conversation: Conversation) -> CachedSequence:
    assert conversation._sequence is not None
    return conversation._sequence


def test_a_turn_goes_into_the_history_and_its_prompt_is_the_whole_history(llm: Model) -> None:
    with llm.conversation() as conversation:
        replies = [conversation.say(turn, SAMPLING, max_tokens=6) for turn in TURNS]
    expected: list[dict[str, str]] = []
    for turn, reply in zip(TURNS, replies, strict=True):
        expected.append({"role": "user", "content": turn})
        whole = llm.generate(expected, SAMPLING, max_tokens=6)
        assert (whole.text, whole.tokens) == (reply.text, reply.tokens)
        expected.append({"role": "assistant", "content": reply.text})
    assert conversation.messages == expected


def test_a_turn_computes_only_what_is_new(llm: Model) -> None:
    llm.release()  # what tests before held of this prompt
    with llm.conversation("Be brief.") as conversation:
        assert conversation.say(TURNS[0], SAMPLING, max_tokens=6).statistics.cached_tokens == 0
        for turn in TURNS[1:]:
            before = llm.tokenizer.encode(llm.prompt(conversation.messages[:-1]), special=False)
            statistics = conversation.say(turn, SAMPLING, max_tokens=6).statistics
            assert len(before) - 1 <= statistics.cached_tokens < statistics.prompt_tokens
            assert held_by(conversation).session.position >= statistics.prompt_tokens


def test_the_system_prompt_comes_first_and_counts(llm: Model) -> None:
    with llm.conversation("Be brief.") as conversation:
        assert conversation.messages == [{"role": "system", "content": "Be brief."}]
        reply = conversation.say("hello", SAMPLING, max_tokens=6)
        assert roles(conversation) == "sua"
        assert reply.tokens == llm.chat(conversation.messages[:2], SAMPLING, max_tokens=6).tokens


def test_a_stream_s_chunks_are_the_reply(llm: Model) -> None:
    with llm.conversation() as one, llm.conversation() as two:
        text = "".join(chunk.text for chunk in one.stream("hello", SAMPLING, max_tokens=6))
        assert text == two.say("hello", SAMPLING, max_tokens=6).text
        assert one.messages == two.messages


def test_a_whole_message_may_be_said(llm: Model) -> None:
    with llm.conversation() as conversation:
        message = {"role": "tool", "name": "ls", "content": "a.txt"}
        conversation.say(message, SAMPLING, max_tokens=3)
        assert conversation.messages[0] == message


def test_a_reply_ends_at_a_stop_string_which_the_history_lacks(llm: Model) -> None:
    with llm.conversation() as conversation:
        whole = conversation.say("hello", SAMPLING, max_tokens=20).text
        conversation.messages.clear()
        stop = whole[4:6]
        reply = conversation.say("hello", SAMPLING, max_tokens=20, stop=stop)
        assert reply.stopped_by == stop
        assert conversation.messages[-1]["content"] == reply.text == whole[: whole.index(stop)]


# --- a turn that does not come to its end


def test_a_turn_that_does_not_fit_leaves_all_as_it_was(llm: Model) -> None:
    with llm.conversation() as conversation, llm.conversation() as other:
        for one in (conversation, other):
            one.say("hello", SAMPLING, max_tokens=6)
        before = list(conversation.messages)
        for call in (conversation.say, conversation.stream):
            with pytest.raises(ContextFull, match="512 can be held"):
                call("so long " * 200)
        assert conversation.messages == before
        assert held_by(conversation).session.position > 0
        for one in (conversation, other):
            one.say("and now?", SAMPLING, max_tokens=6)
        assert conversation.messages == other.messages


@pytest.mark.parametrize("when_full", get_args(WhenFull))
@pytest.mark.parametrize("said", [{"content": "no role"}, {"role": 5, "content": "?"}, {}])
def test_a_template_that_refuses_leaves_all_as_it_was(llm: Model, when_full: WhenFull, said: Message) -> None:
    with llm.conversation(when_full=when_full) as conversation:
        with pytest.raises((TemplateError, ValueError), match=r"^messages"):
            conversation.say(said)
        assert conversation.messages == []


def test_a_device_that_fails_leaves_the_history_as_it_was(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with llm.conversation() as conversation:
        conversation.say("hello", SAMPLING, max_tokens=6)
        before = list(conversation.messages)
        feed, calls = CachedSequence.feed, iter(range(100))

        def fail(self: CachedSequence, tokens: list[int]) -> object:
            if next(calls) == 3:
                raise DeviceError("gone")
            return feed(self, tokens)

        with monkeypatch.context() as patch:
            patch.setattr(CachedSequence, "feed", fail)
            with pytest.raises(DeviceError, match="gone"):
                conversation.say("and now?", SAMPLING, max_tokens=6)
        assert conversation.messages == before
        assert conversation.say("and now?", SAMPLING, max_tokens=6).tokens
        assert roles(conversation) == "uaua"


def test_a_cancelled_turn_keeps_the_part_that_was_said(llm: Model) -> None:
    cancel = Cancel()
    with llm.conversation() as conversation:
        chunks = []
        # more than is computed before somebody reads it
        for chunk in conversation.stream("hello", SAMPLING, max_tokens=AHEAD + 20, stop_tokens=(), cancel=cancel):
            chunks.append(chunk)
            if len(chunks) == 4:
                cancel.cancel()
        assert chunks[-1].finish_reason == "cancelled"
        said = "".join(chunk.text for chunk in chunks)
        assert said
        assert conversation.messages == [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": said},
        ]
        goes_on = conversation.say("go on", SAMPLING, max_tokens=6)
        assert goes_on.tokens == llm.chat(conversation.messages[:3], SAMPLING, max_tokens=6).tokens


def test_a_turn_that_is_cancelled_before_any_text_says_nothing(llm: Model) -> None:
    cancel = Cancel()
    cancel.cancel()
    with llm.conversation() as conversation:
        assert conversation.say("hello", SAMPLING, cancel=cancel).finish_reason == "cancelled"
        assert conversation.messages == []


def test_a_stream_that_is_left_keeps_the_part_that_was_said(llm: Model) -> None:
    with llm.conversation() as conversation:
        text = ""
        for count, chunk in enumerate(conversation.stream("hello", SAMPLING, max_tokens=20)):
            text += chunk.text
            if count == 5:
                break
        assert conversation.messages[1:] == [{"role": "assistant", "content": text}]


def test_a_second_turn_waits_for_the_first_to_end(llm: Model) -> None:
    with llm.conversation() as conversation, llm.conversation() as other:
        first = conversation.stream("hello", SAMPLING, max_tokens=6)
        next(first)
        with pytest.raises(ValueError, match="this conversation has a reply under way"):
            conversation.say("and now?", SAMPLING, max_tokens=6)
        list(first)
        other.say("hello", SAMPLING, max_tokens=6)
        assert conversation.messages == other.messages


def test_a_stream_made_before_another_turn_is_refused(llm: Model) -> None:
    """Its prompt does not have that turn."""
    with llm.conversation() as conversation:
        streams = [conversation.stream(text, SAMPLING, max_tokens=3) for text in ("hello", "and now?")]
        list(streams[0])
        history = [*conversation.messages]
        with pytest.raises(ValueError, match="history has changed since this stream was made"):
            next(streams[1])
        assert conversation.messages == history


def test_asynchronous_turns_equal_synchronous_ones(llm: Model) -> None:
    async def main(conversation: Conversation) -> list[tuple[int, ...]]:
        said = [await conversation.asay(turn, SAMPLING, max_tokens=6, logprobs=1) for turn in TURNS]
        assert all(len(reply.top_logprobs) == len(reply.tokens) for reply in said)
        assert said[-1].statistics.cached_tokens > 0
        async for _ in conversation.astream("and?", SAMPLING, max_tokens=6, stop_tokens=()):
            with pytest.raises(ValueError, match="has a reply under way"):
                await conversation.asay("too early")
        return [reply.tokens for reply in said]

    with llm.conversation() as one, llm.conversation() as two:
        assert asyncio.run(main(one)) == [two.say(turn, SAMPLING, max_tokens=6).tokens for turn in TURNS]
        two.say("and?", SAMPLING, max_tokens=6, stop_tokens=())
        assert one.messages == two.messages


def test_an_asynchronous_turn_that_is_left_keeps_and_one_that_fails_forgets(
    llm: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(conversation: Conversation) -> str:
        text = ""
        async for chunk in conversation.astream("hello", SAMPLING, max_tokens=20):
            text += chunk.text
            if text:
                break
        return text

    def fail(self: CachedSequence, tokens: list[int]) -> object:
        raise DeviceError("gone")

    with llm.conversation() as conversation:
        text = asyncio.run(leave(conversation))
        assert conversation.messages[1:] == [{"role": "assistant", "content": text}]
        monkeypatch.setattr(CachedSequence, "feed", fail)
        with pytest.raises(DeviceError, match="gone"):
            asyncio.run(conversation.asay("and now?"))
        assert roles(conversation) == "ua"


def test_a_stream_that_nobody_reads_says_nothing(llm: Model) -> None:
    with llm.conversation() as conversation:
        conversation.stream("hello")
        assert conversation.messages == []


# --- history and cache


def test_an_edited_history_is_what_counts(llm: Model) -> None:
    with llm.conversation() as conversation:
        for turn in TURNS:
            conversation.say(turn, SAMPLING, max_tokens=6)
        conversation.messages[1] = {"role": "assistant", "content": "Something else."}
        del conversation.messages[4:]
        expected = llm.chat([*conversation.messages, {"role": "user", "content": "so?"}], SAMPLING, max_tokens=6)
        llm.release()  # of that call's KV the conversation would have its part
        reply = conversation.say("so?", SAMPLING, max_tokens=6)
        assert reply.tokens == expected.tokens
        assert roles(conversation) == "uauaua"
        shared = llm.tokenizer.encode(llm.prompt(conversation.messages[:1]), special=False)
        assert 0 < reply.statistics.cached_tokens <= len(shared)


def test_interleaved_conversations_equal_separate_ones(llm: Model) -> None:
    separate = []
    for system in ("one", "two"):
        with llm.conversation(system) as conversation:
            separate.append([conversation.say(turn, SAMPLING, max_tokens=6).tokens for turn in TURNS])
    with llm.conversation("one") as one, llm.conversation("two") as two:
        pairs = []
        for turn in TURNS:
            pairs.append([conversation.say(turn, SAMPLING, max_tokens=6) for conversation in (one, two)])
            llm.generate("something between", max_tokens=3)
    assert [[pair[place].tokens for pair in pairs] for place in range(2)] == separate
    assert all(reply.statistics.cached_tokens > 0 for pair in pairs[1:] for reply in pair)


def test_streams_of_two_conversations_may_run_at_once(llm: Model) -> None:
    with llm.conversation("one") as one, llm.conversation("two") as two:
        streams = [conversation.stream("hello", SAMPLING, max_tokens=6) for conversation in (one, two)]
        for _ in zip(*streams, strict=False):
            pass
        for stream in streams:
            list(stream)
        for conversation, system in ((one, "one"), (two, "two")):
            with llm.conversation(system) as alone:
                alone.say("hello", SAMPLING, max_tokens=6)
                assert alone.messages == conversation.messages


def test_a_closed_conversation_goes_on_from_its_history(llm: Model) -> None:
    with llm.conversation() as conversation, llm.conversation() as other:
        for one in (conversation, other):
            one.say("hello", SAMPLING, max_tokens=6)
        conversation.close()
        conversation.close()
        replies = [one.say("and now?", SAMPLING, max_tokens=6) for one in (conversation, other)]
        reply, expected = replies
        assert 0 < reply.statistics.cached_tokens <= expected.statistics.cached_tokens  # the other one's
        assert reply.tokens == expected.tokens
        assert conversation.messages == other.messages


def test_a_turn_that_waits_while_its_conversation_is_closed_has_its_reply(llm: Model) -> None:
    async def close_early(talk: Conversation) -> Completion:
        gate = threading.Event()
        llm.runner.sequences.loop.post(gate.wait)  # what is asked of the loop comes after it
        turn = asyncio.create_task(talk.asay("and then?", SAMPLING, max_tokens=5))
        await asyncio.sleep(0)  # it is queued
        talk.close()
        gate.set()
        return await turn

    llm.release()
    others = llm.runner.call(lambda: llm.runner.sequences.sequences)
    with llm.conversation() as talk, llm.conversation() as plain:
        replies = [one.say("one", SAMPLING, max_tokens=5).text for one in (talk, plain)]
        assert asyncio.run(close_early(talk)).text == plain.say("and then?", SAMPLING, max_tokens=5).text
        assert talk.messages == plain.messages
        assert replies[0] == replies[1]
    gc.collect()
    assert llm.runner.call(lambda: llm.runner.sequences.sequences) == others


def test_a_conversation_ends_with_its_model(tiny_package: Callable[..., Path]) -> None:
    with load(tiny_package("llama")) as model:
        conversation = model.conversation()
        conversation.say("hello", max_tokens=2)
    before = list(conversation.messages)
    with pytest.raises(ValueError, match="this model was closed"):
        conversation.say("hello")
    assert conversation.messages == before
    conversation.close()


def test_tools_and_variables_reach_the_template(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    for file in tiny_package("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    template = "{% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ mood }}\n" + TEMPLATE
    (tmp_path / "chat_template.jinja").write_text(template)

    def list_files(folder: str) -> str:
        """Lists a folder.

        Args:
            folder: The folder.
        """
        return folder

    with load(tmp_path) as model, model.conversation(tools=[list_files], variables={"mood": "kind"}) as conversation:
        reply = conversation.say("hello", SAMPLING, max_tokens=2)
        prompt = model.prompt(conversation.messages[:1], tools=[list_files], variables={"mood": "kind"})
        assert prompt.startswith("list_files kind\n<|im_start|>user")
        assert reply.statistics.prompt_tokens == len(model.tokenizer.encode(prompt, special=False))
