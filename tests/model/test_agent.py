"""Tools over a model that says what the test wrote: requests, streams, conversations, the loop, its limits."""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass
from typing import Any, cast

import pytest

import embedllm
from embedllm import (
    Cancel,
    Chunk,
    Conversation,
    Message,
    ToolCall,
    ToolOutcome,
    ToolReply,
    arun_tools,
    run_tools,
)
from embedllm.sampling.options import Sampling
from embedllm.text.function_schema import tool_schema
from tests.support.scripted import CHATML, call, scripted

ASK: list[Message] = [{"role": "user", "content": "?"}]


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


async def fetch(name: str) -> str:
    """Fetch something.

    Args:
        name: what
    """
    await asyncio.sleep(0)
    return f"<{name}>"


def fail() -> str:
    """Fail."""
    raise OSError("the disk is on fire")


def said(outcome: ToolReply) -> list[str]:
    return [str(message["content"]) for message in outcome.messages if message["role"] == "tool"]


# --- one reply


def test_a_template_without_tools_gets_them_in_the_messages_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, prompts = scripted('{"name": "add", "arguments": {"a": 1}}', "It is 2.", "It was 2.", template=CHATML)
    with caplog.at_level(logging.WARNING, logger="embedllm"):
        reply = run_tools(model, ASK, [add])
        model.chat([*ASK, *reply.messages, *ASK], tools=[add])
    assert (reply.text, [outcome.result for outcome in reply.outcomes]) == ("It is 2.", ["2"])
    assert '{"name": "add", "description": "Add two numbers."' in prompts[0]
    assert "<|im_start|>assistant\n" + '{"name": "add", "arguments": {"a": 1}}<|im_end|>' in prompts[1]
    assert "<|im_start|>user\nResult of add:\n2<|im_end|>" in prompts[1]
    assert prompts[2].startswith(prompts[1])  # so its KV is used again
    assert [record.getMessage() for record in caplog.records] == [
        "the chat template of 'scripted' does not show tools: they are described in the system message, and calls are "
        "plain JSON"
    ]


def test_documents_that_the_template_does_not_show_are_said_once_to_be_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    documents = [{"title": "a", "text": "b"}]
    model, _ = scripted("One.", "Two.", "Three.", template=CHATML)
    shows, _ = scripted("One.", template=CHATML + "{% for one in documents %}{{ one.text }}{% endfor %}")
    with caplog.at_level(logging.WARNING, logger="embedllm"):
        model.chat(ASK)
        shows.chat(ASK, documents=documents)
        assert not caplog.records
        model.chat(ASK, documents=documents)
        model.chat(ASK, documents=documents)
    assert [record.getMessage() for record in caplog.records] == [
        "the chat template of 'scripted' does not show documents: the model does not see them; put them into a message"
    ]


def test_a_reply_is_parted_into_reasoning_answer_and_calls() -> None:
    model, _ = scripted("<think>\nAdd.\n</think>\n\nI add. " + call("add", '{"a": 1}'))
    reply = model.chat(ASK, tools=[add])
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("I add.", "Add.", "stop")
    (found,) = reply.tool_calls
    assert (found.name, found.arguments, found.problem, str(found)) == ("add", {"a": 1}, "", "add(a=1)")
    again = model.prompt([*ASK, reply.message], tools=[add])
    assert (
        '<think>\nAdd.\n</think>\n\nI add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in again
    )


def test_a_stream_gives_each_part_as_soon_as_it_is_certain() -> None:
    model, _ = scripted("<think>Hm</think>Yes " + call("add", '{"a": 1}'))
    chunks = list(model.stream(ASK, tools=[add]))
    assert "".join(chunk.reasoning for chunk in chunks) == "Hm"
    assert "".join(chunk.text for chunk in chunks) == "Yes"
    assert sum(len(chunk.tool_calls) for chunk in chunks[:-1]) == 1  # before the stop token
    assert len(chunks) == len("<think>Hm</think>Yes " + call("add", '{"a": 1}')) + 1


def test_calls_are_looked_for_when_there_are_tools_and_never_in_a_raw_reply() -> None:
    text = "<think>Hm</think>" + call("add", "{}")
    for options, expected in (({}, call("add", "{}")), ({"tools": [add], "tool_choice": "none"}, call("add", "{}")),
                              ({"tools": [add], "special": True}, text + "<end>")):  # fmt: skip
        model, prompts = scripted(text)
        reply = model.chat(ASK, **cast("Any", options))
        assert reply.tool_calls == ()
        assert reply.text in (expected, expected.removesuffix("<end>"))
        assert ("# Tools" in prompts[0]) == ("special" in options)
    model, _ = scripted(text)
    assert model.generate("a plain prompt").text == text


def test_a_model_that_does_not_think_streams_as_before() -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model, _ = scripted("<think>1</think>", template=plain)
    assert model.request(ASK).reader is None
    assert [chunk.text for chunk in model.stream(ASK)] == [*"<think>1</think>", ""]


def test_a_conversation_keeps_calls_and_takes_their_results() -> None:
    model, prompts = scripted(call("add", '{"a": 2}'), "It is 3.")
    with model.conversation(tools=[add]) as chat:
        reply = chat.say("2 + 1?")
        result: Message = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "3"}
        assert chat.say(result).text == "It is 3."
        assert chat.messages[1] == reply.message
    assert "<tool_response>\n3\n</tool_response>" in prompts[1]


@pytest.mark.parametrize("choice", ["required", "add", "sub"])
def test_a_choice_that_cannot_be_followed_is_refused(choice: str) -> None:
    model, _ = scripted("x")
    with pytest.raises(ValueError, match=r"tool_choice|response_format"):
        model.chat(ASK, tools=[add] if choice == "sub" else None, tool_choice=choice)
    with pytest.raises(ValueError, match="cannot both"):
        model.chat(ASK, tools=[add], tool_choice="add", response_format={"type": "json_object"})


# --- the loop


def test_a_call_runs_and_the_model_goes_on_with_its_result() -> None:
    model, prompts = scripted(call("add", '{"a": 1, "b": 2}') + "\n" + call("add", '{"a": 5}'), "3 and 6.")
    heard: list[ToolOutcome] = []
    reply = run_tools(model, ASK, [add], on_call=heard.append)
    assert reply.text == "3 and 6."
    assert [outcome.result for outcome in reply.outcomes] == said(reply) == ["3", "6"]
    assert heard == list(reply.outcomes)
    assert all(outcome.ran for outcome in heard)
    assert [message["role"] for message in reply.messages] == ["assistant", "tool", "tool", "assistant"]
    assert "<tool_response>\n3\n</tool_response>\n<tool_response>\n6\n</tool_response>" in prompts[1]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (call("sub", "{}"), "there is no tool 'sub'; there are add, fail"),
        (call("add", '{"a": "1"}'), "the argument 'a' is \"1\", expected integer"),
        (call("add", '{"b": 1}'), "the argument 'a' is missing"),
        (call("add", '{"a": 1, "c": 1}'), "there is no argument 'c'; expected a, b"),
        (call("add", '{"a": 1, "a": 2}'), "'a' is there twice"),
        (call("fail", "{}"), "OSError: the disk is on fire"),
    ],
)
def test_what_went_wrong_is_told_to_the_model(reply: str, told: str) -> None:
    model, _ = scripted(reply, "Sorry.")
    done = run_tools(model, ASK, [add, fail])
    assert told in said(done)[0]
    assert not done.outcomes[0].ran
    assert done.text == "Sorry."


def test_where_a_tool_failed_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = scripted(call("fail", "{}"), "Sorry.")
    with caplog.at_level(logging.INFO, logger="embedllm"):
        run_tools(model, ASK, [fail])
    (record,) = [record for record in caplog.records if "'fail'" in record.getMessage()]
    assert record.levelno == logging.INFO
    assert 'raise OSError("the disk is on fire")' in logging.Formatter().formatException(cast("Any", record.exc_info))


class MuteError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("mute")


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("name\udcff.txt", "name?.txt"),
        (["name\udcff.txt"], '["name?.txt"]'),
        (OSError("no file name\udcff.txt"), "error: OSError: no file name?.txt"),
        (MuteError(), "error: MuteError: (its text cannot be had: RuntimeError)"),
    ],
)
def test_text_that_is_none_and_errors_that_cannot_speak_do_not_end_the_loop(outcome: object, told: str) -> None:
    def look(name: str) -> object:
        """Looks.

        Args:
            name: What for
        """
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    model, prompts = scripted(call("look", '{"name": "x"}'), "Done.")
    reply = run_tools(model, ASK, [look])
    assert reply.text == "Done."
    assert reply.outcomes[0].result == told
    assert told in prompts[1]


def test_a_declined_call_does_not_run() -> None:
    model, _ = scripted(call("fail", "{}"), "Fine.")
    asked: list[ToolCall] = []

    def confirm(asking: ToolCall) -> bool:
        asked.append(asking)
        return False

    assert said(run_tools(model, ASK, [fail], confirm=confirm)) == ["error: the user declined the call."]
    assert [asking.name for asking in asked] == ["fail"]


def test_rounds_are_limited_and_the_last_calls_left_to_the_caller() -> None:
    model, _ = scripted(*[call("add", '{"a": 1}')] * 3)
    reply = run_tools(model, ASK, [add], max_rounds=2)
    assert (len(reply.outcomes), len(reply.completion.tool_calls)) == (2, 1)
    with pytest.raises(ValueError, match="max_rounds is 0"):
        run_tools(model, ASK, [add], max_rounds=0)


def test_schemas_have_their_functions_given() -> None:
    schema = tool_schema(add)
    model, _ = scripted(call("add", '{"a": 1}'), "2.")
    assert said(run_tools(model, ASK, [schema], functions={"add": lambda a, b=10: a + b})) == ["11"]
    with pytest.raises(ValueError, match="without a function"):
        run_tools(model, ASK, [schema])


class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"


@dataclass
class Place:
    name: str
    unit: Unit = Unit.CELSIUS

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a place needs a name")


def test_a_function_gets_arguments_of_its_type_hints_and_may_return_them() -> None:
    def look(places: list[Place], unit: Unit) -> dict[str, Place | Unit]:
        """Look.

        Args:
            places: where
            unit: of what is found
        """
        return {place.name: Place(place.name, unit) if place.unit is Unit.CELSIUS else unit for place in places}

    def best(unit: Unit) -> Unit:
        """The best.

        Args:
            unit: one
        """
        return unit

    calls = (
        call("look", '{"places": [{"name": "a"}, {"name": "b", "unit": "k"}], "unit": "k"}')
        + call("best", '{"unit": "c"}')
        + call("look", '{"places": [{"name": ""}], "unit": "k"}')
        + call("look", '{"places": [{"name": "a", "size": 1}], "unit": "k"}')
    )
    model, _ = scripted(calls, "Done.")
    assert said(run_tools(model, ASK, [look, best])) == [
        '{"a": {"name": "a", "unit": "k"}, "b": "k"}',
        "c",
        "error: ValueError: the argument 'places': a place needs a name",
        "error: there is no argument 'places[0].size'; expected name, unit.",
    ]


def test_a_function_with_a_schema_by_hand_gets_json() -> None:
    def best(unit: Unit) -> str:
        return f"{unit!r}"

    schema = {"type": "function", "function": {"name": "best", "parameters": {"properties": {"unit": {}}}}}
    model, _ = scripted(call("best", '{"unit": "c"}'), "Done.")
    assert said(run_tools(model, ASK, [schema], functions={"best": best})) == ["'c'"]


def test_tools_may_be_coroutines() -> None:
    model, _ = scripted(call("fetch", '{"name": "x"}') + call("add", '{"a": 1}'), "Done.")

    async def confirm(asking: ToolCall) -> bool:
        await asyncio.sleep(0)
        return True

    reply = asyncio.run(arun_tools(model, ASK, [fetch, add], confirm=confirm))
    assert said(reply) == ["<x>", "2"]
    with pytest.raises(ValueError, match="use arun_tools"):
        run_tools(model, ASK, [fetch])


def test_an_error_of_the_model_or_the_callers_functions_is_raised() -> None:
    model, _ = scripted(call("add", '{"a": 1}'))

    def broken(outcome: ToolOutcome) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_tools(model, ASK, [add], on_call=broken)


# --- with a conversation


def roles(talk: Conversation) -> str:
    return "".join(str(message["role"])[0] for message in talk.messages)


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_conversation_gets_calls_results_and_answer(is_awaited: bool) -> None:
    two = call("add", '{"a": 1, "b": 2}') + "\n" + call("add", '{"a": 5}')
    model, prompts = scripted(two, "3 and 6.", "You are welcome.")
    plain, expected = scripted(two, "3 and 6.")
    with model.conversation("Be brief.", tools=[add]) as talk:
        reply = asyncio.run(arun_tools(talk, "?")) if is_awaited else run_tools(talk, "?")
        assert reply.text == "3 and 6."
        assert said(reply) == ["3", "6"]
        assert roles(talk) == "suatta"
        assert talk.messages[2:] == list(reply.messages)
        asked: list[Message] = [{"role": "system", "content": "Be brief."}, *ASK]
        assert [without_ids(message) for message in run_tools(plain, asked, [add]).messages] == [
            without_ids(message) for message in reply.messages
        ]
        assert prompts == expected
        assert talk.say("thanks").text == "You are welcome."
        assert "<tool_response>\n6\n</tool_response>" in prompts[2]


def without_ids(message: Message) -> dict[str, object]:
    calls = message.get("tool_calls", [])
    assert isinstance(calls, list)
    kept = {name: value for name, value in message.items() if name != "tool_call_id"}
    return {**kept, "tool_calls": [{**cast("dict[str, Any]", one), "id": ""} for one in calls]}


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_conversation_is_as_it_was_when_the_loop_fails(is_awaited: bool) -> None:
    model, _ = scripted("Hello.", call("add", '{"a": 1}'), "Hello again.")

    def broken(outcome: ToolOutcome) -> None:
        raise KeyError("mine")

    def run(talk: Conversation) -> ToolReply:
        called = asyncio.run(arun_tools(talk, "?", on_call=broken)) if is_awaited else None
        return called or run_tools(talk, "?", on_call=broken)

    with model.conversation(tools=[add]) as talk:
        talk.say("hi")
        before = list(talk.messages)
        with pytest.raises(KeyError, match="mine"):
            run(talk)
        assert talk.messages == before
        assert talk.say("hi").text == "Hello again."


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("is_talk", [False, True])
def test_each_reply_is_told_step_by_step(is_awaited: bool, is_talk: bool) -> None:
    model, _ = scripted("I add. " + call("add", '{"a": 1}'), "It is 2.")
    chunks: list[Chunk] = []
    seen: list[str] = []

    def on_call(outcome: ToolOutcome) -> None:
        seen.append("".join(chunk.text for chunk in chunks))

    with model.conversation(tools=[add]) as talk:
        asked: tuple[Any, ...] = (talk, "?") if is_talk else (model, ASK, [add])
        if is_awaited:
            reply = asyncio.run(arun_tools(*asked, on_call=on_call, on_chunk=chunks.append))
        else:
            reply = run_tools(*asked, on_call=on_call, on_chunk=chunks.append)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop", "stop"]
    assert len(chunks) > 10
    assert "".join(chunk.text for chunk in chunks) == "I add.It is 2."
    assert seen == ["I add."]  # the calls are told after the reply that they stand in
    assert [found for chunk in chunks for found in chunk.tool_calls] == [outcome.call for outcome in reply.outcomes]


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_conversation_is_as_it_was_when_a_step_cannot_be_told(is_awaited: bool) -> None:
    model, _ = scripted("Hello.", "Hello.")

    def broken(chunk: Chunk) -> None:
        if chunk.text == "o":
            raise KeyError("mine")

    def run(talk: Conversation) -> ToolReply:
        called = asyncio.run(arun_tools(talk, "?", on_chunk=broken)) if is_awaited else None
        return called or run_tools(talk, "?", on_chunk=broken)

    with model.conversation(tools=[add]) as talk:
        with pytest.raises(KeyError, match="mine"):
            run(talk)
        assert talk.messages == []
        talk.say("hi", max_tokens=1)  # no turn is left under way


def test_a_message_is_said_and_what_does_not_go_together_is_refused() -> None:
    model, _ = scripted("Hello.")
    with model.conversation(tools=[add]) as talk:
        run_tools(talk, {"role": "user", "content": "hi"}, tool_choice="none")
        assert roles(talk) == "ua"
        with pytest.raises(ValueError, match="has tools and variables of its own"):
            run_tools(talk, "hi", [add])
        with pytest.raises(ValueError, match="to a conversation a text or one message is said"):
            run_tools(talk, ASK)
        talk.tools = None
        with pytest.raises(ValueError, match="this conversation has no tools"):
            run_tools(talk, "hi")
    with pytest.raises(ValueError, match="there are no tools"):
        run_tools(model, ASK)
    with pytest.raises(ValueError, match="found a text"):
        run_tools(model, "hi", [add])


@pytest.mark.parametrize("choice", ["required", "add"])
def test_the_demo_writes_the_call_that_it_must(choice: str) -> None:
    with embedllm.load("demo") as model:
        asked: list[Message] = [{"role": "user", "content": "Tell me a joke."}]
        reply = model.chat(asked, Sampling(temperature=0.0), tools=[add, fail], tool_choice=choice, max_tokens=200)
    (found,) = reply.tool_calls
    assert (reply.text, found.problem, reply.finish_reason) == ("", "", "stop")
    assert found.name in (["add", "fail"] if choice == "required" else ["add"])
    if found.name == "add":
        assert isinstance(found.arguments["a"], int)


# --- tools that call the model


def test_a_tool_may_call_the_model_that_has_one_place_only() -> None:
    model, _ = scripted(call("ask", '{"question": "2+2"}'), "four", "It is four.", max_running=1,
                        max_waiting=0)  # fmt: skip

    def ask(question: str) -> str:
        """Ask.

        Args:
            question: what
        """
        return model.generate(question).text

    done = run_tools(model, ASK, [ask])
    assert (said(done), done.text) == (["four"], "It is four.")
    assert (model.runner.scheduler.running, model.runner.scheduler.waiting) == ([], [])


# --- cancelled between two replies


@pytest.mark.parametrize("is_async", [False, True])
def test_after_a_cancel_no_tool_runs_and_a_conversation_has_a_result_for_each_call(is_async: bool) -> None:
    cancel, ran, asked = Cancel(), [], []

    def first() -> str:
        """One."""
        ran.append("first")
        cancel.cancel()
        return "done"

    def second() -> str:
        """Two."""
        ran.append("second")
        return "done"

    model, _ = scripted(call("first", "{}") + call("second", "{}"), "never")
    with model.conversation(tools=[first, second]) as talk:
        loop: Any = (lambda *a, **k: asyncio.run(arun_tools(*a, **k))) if is_async else run_tools
        done = loop(talk, "?", cancel=cancel, confirm=lambda one: asked.append(one.name) or True)
        assert done.completion.finish_reason == "cancelled"
        assert (ran, asked) == (["first"], ["first"])
        assert [outcome.ran for outcome in done.outcomes] == [True, False]
        assert [message["role"] for message in talk.messages] == ["user", "assistant", "tool", "tool"]
        assert talk.messages[2]["content"] == "done"
        assert talk.messages[3]["content"] == "error: cancelled before it ran."
        assert talk.messages[2:] == list(done.messages[1:3])


def test_a_question_that_is_cancelled_before_any_text_is_not_in_the_history() -> None:
    cancel = Cancel()
    cancel.cancel()
    model, _ = scripted("never")
    with model.conversation(tools=[add]) as talk:
        assert run_tools(talk, "?", cancel=cancel).completion.finish_reason == "cancelled"
        assert talk.messages == []
