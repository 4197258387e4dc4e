"""A tool loop that stops for approval and goes on, in this process or another one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import embedllm
from embedllm import Conversation, FunctionTool, Message, Model, PausedRun, Sampling, ToolReply, arun_tools, run_tools
from tests.support.scripted import call, scripted

ASK: list[Message] = [{"role": "user", "content": "?"}]
TWO = "I do both. " + call("look", '{"place": "here"}') + call("remove", '{"name": "a"}')


class Tools:
    """Two tools, one of which needs approval, and what they did."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def look(self, place: str) -> str:
        """Look.

        Args:
            place: where
        """
        self.did.append(f"look {place}")
        return "seen"

    def remove(self, name: str) -> str:
        """Remove.

        Args:
            name: what
        """
        self.did.append(f"remove {name}")
        return "gone"

    @property
    def all(self) -> list[Any]:
        return [self.look, self.remove]


def is_remove(asked: embedllm.ToolCall) -> bool:
    return asked.name == "remove"


def run(is_async: bool, *arguments: Any, **options: Any) -> ToolReply:  # noqa: ANN401 # as run_tools
    return asyncio.run(arun_tools(*arguments, **options)) if is_async else run_tools(*arguments, **options)


def paused_of(reply: ToolReply) -> PausedRun:
    assert reply.paused is not None
    return reply.paused


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_talk", [False, True])
def test_a_run_stops_before_the_calls_and_another_model_resumes_it_from_json(is_async: bool, is_talk: bool) -> None:
    tools, later = Tools(), Tools()
    model, prompts = scripted(TWO, "Done.")
    plain, expected = scripted(TWO, "Done.")
    run_tools(plain, ASK, Tools().all)
    asked: tuple[Any, ...] = (model.conversation(tools=tools.all), "?") if is_talk else (model, ASK, tools.all)
    first = run(is_async, *asked, needs_approval=is_remove)
    paused = paused_of(first)
    assert (tools.did, first.text, first.outcomes) == ([], "I do both.", ())
    assert [waiting.name for waiting in paused.pending] == ["remove"]
    assert list(paused.messages) == [*ASK, *first.messages]

    text = paused.to_json()
    assert json.loads(text)["messages"] == list(paused.messages)
    read = PausedRun.from_json(text)
    assert read == paused
    other, resumed = scripted("Done.")
    if is_talk:
        talk = other.conversation(tools=later.all)
        talk.messages[:] = read.messages
        goes_on: tuple[Any, ...] = (talk, read)
    else:
        goes_on = (other, read, later.all)
    reply = run(is_async, *goes_on, needs_approval=is_remove, decisions={read.pending[0].id: True})
    assert reply.paused is None
    assert (reply.text, later.did, tools.did) == ("Done.", ["look here", "remove a"], [])
    assert [outcome.result for outcome in reply.outcomes] == ["seen", "gone"]
    assert [message["role"] for message in reply.messages] == ["assistant", "tool", "tool", "assistant"]
    assert [*prompts, *resumed] == expected  # as if it had never stopped
    if is_talk:
        assert isinstance(goes_on[0], Conversation)
        assert goes_on[0].messages == [*ASK, *reply.messages]


@pytest.mark.parametrize(
    ("decision", "did", "result"),
    [
        (False, ["look here"], "error: the user declined the call."),
        ("it is still used\udcff", ["look here"], "error: the user declined the call: it is still used?"),
        ({"name": "b"}, ["look here", "remove b"], "gone"),
    ],
)
@pytest.mark.parametrize("is_talk", [False, True])
def test_calls_are_denied_with_a_reason_or_run_with_other_arguments(
    decision: Any,  # noqa: ANN401 # one of each type
    did: list[str],
    result: str,
    is_talk: bool,
) -> None:
    tools = Tools()
    model, prompts = scripted(TWO, "Done.")
    asked: tuple[Any, ...] = (model.conversation(tools=tools.all), "?") if is_talk else (model, ASK, tools.all)
    paused = paused_of(run_tools(*asked, needs_approval=is_remove))
    goes_on = (asked[0], paused, *asked[2:])
    reply = run_tools(*goes_on, decisions={paused.pending[0].id: decision})
    assert tools.did == did
    assert reply.outcomes[1].result == result
    assert result in prompts[1]
    expected = {"name": "b"} if isinstance(decision, dict) else {"name": "a"}
    assert reply.outcomes[1].call.arguments == expected
    assert json.dumps(expected) in prompts[1]  # the model reads what ran, not what it wrote
    if is_talk:
        assert asked[0].messages == [*ASK, *reply.messages]


def test_decisions_that_do_not_fit_are_refused_before_anything_runs() -> None:
    tools = Tools()
    model, _ = scripted(TWO, "Done.")
    paused = paused_of(run_tools(model, ASK, tools.all, needs_approval=lambda asked: True))
    first, second = (waiting.id for waiting in paused.pending)
    wrong: list[tuple[Any, str]] = [
        ({}, "no decision for the call"),
        ({first: True}, rf"no decision for the call '{second}' \(remove\(name='a'\)\)"),
        ({first: True, second: True, "x": True}, "decisions has 'x'"),
        ({first: True, second: 1}, "is 1; expected True, False"),
        ({first: True, second: {"nam": "b"}}, r"\(remove\): there is no argument 'nam'"),
    ]
    for decisions, message in wrong:
        with pytest.raises(ValueError, match=message):
            run_tools(model, paused, tools.all, decisions=decisions)
    with pytest.raises(ValueError, match="messages is no PausedRun"):
        run_tools(model, ASK, tools.all, decisions={first: True})
    with pytest.raises(ValueError, match="not the reply that waits for approval"):
        run_tools(model.conversation(tools=tools.all), paused, decisions={first: True, second: True})
    assert tools.did == []


def test_two_calls_with_the_same_id_are_decided_each_for_itself() -> None:
    entry = '{"name": "remove", "arguments": {"name": "%s"}, "id": "abcdefghi"}'
    twice = f"[TOOL_CALLS] [{entry % 'a'}, {entry % 'b'}]"
    template = (Path(__file__).parents[1] / "templates" / "mistral_v3.jinja").read_text(encoding="utf-8")
    tools = Tools()
    model, _ = scripted(twice, "Done.", template=template)
    paused = paused_of(run_tools(model, ASK, tools.all, needs_approval=is_remove))
    first, second = (waiting.id for waiting in paused.pending)
    assert first == "abcdefghi"
    assert first != second
    assert [each["id"] for each in messages_calls(paused)] == [first, second]
    run_tools(model, paused, tools.all, decisions={first: True, second: False})
    assert tools.did == ["remove a"]


def messages_calls(paused: PausedRun) -> list[dict[str, Any]]:
    calls: Any = paused.messages[-1]["tool_calls"]
    return calls


def test_calls_that_cannot_run_wait_for_nobody_and_rounds_go_on_counting() -> None:
    tools = Tools()
    bad = call("remove", '{"nam": "a"}') + call("erase", "{}")
    model, _ = scripted(bad, call("remove", '{"name": "a"}'), call("remove", '{"name": "b"}'), call("look", "{}"))
    asked: list[str] = []
    paused = paused_of(run_tools(model, ASK, tools.all, needs_approval=is_remove, max_rounds=3))
    assert [outcome.ran for outcome in paused.outcomes] == [False, False]
    assert paused.rounds == 1
    again = PausedRun.from_json(paused.to_json())
    second = run_tools(model, again, tools.all, needs_approval=is_remove, decisions={again.pending[0].id: True},
                       max_rounds=3, confirm=lambda one: asked.append(one.name) or True)  # fmt: skip
    paused = paused_of(second)
    assert (tools.did, paused.rounds, len(paused.outcomes), asked) == (["remove a"], 2, 3, [])
    last = run_tools(model, paused, tools.all, decisions={paused.pending[0].id: True}, max_rounds=3)
    assert tools.did == ["remove a", "remove b"]
    assert (last.paused, last.completion.tool_calls[0].name) == (None, "look")  # the fourth reply's are not run
    assert len(last.outcomes) == 4


def test_a_conversation_is_as_it_was_when_the_resumed_run_fails() -> None:
    tools = Tools()
    model, _ = scripted(TWO, "Done.")
    with model.conversation(tools=tools.all) as talk:
        paused = paused_of(run_tools(talk, "?", needs_approval=is_remove))
        before = list(talk.messages)

        def broken(outcome: embedllm.ToolOutcome) -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError):
            run_tools(talk, paused, decisions={paused.pending[0].id: {"name": "b"}}, on_call=broken)
        assert talk.messages == before
        assert run_tools(talk, paused, decisions={paused.pending[0].id: False}).text == "Done."


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda values: [], "version is None"),
        (lambda values: {**values, "version": 2}, "version is 2, expected 1"),
        (lambda values: {**values, "pending": ["x"]}, "'x'"),
        (lambda values: {**values, "pending": []}, "wait"),
        (lambda values: {**values, "new": 5}, "of 2 messages 5 are new"),
        (lambda values: {**values, "messages": "no"}, "no list of messages"),
        (lambda values: {**values, "calls": [{"id": "x"}]}, "name"),
        (lambda values: {**values, "calls": []}, "wait"),
        (lambda values: {**values, "messages": [*values["messages"][:-1], {"role": "assistant"}]}, "other calls"),
        (lambda values: {key: values[key] for key in values if key != "outcomes"}, "it has no 'outcomes'"),
    ],
)
def test_text_that_is_no_paused_run_is_refused(change: Any, problem: str) -> None:  # noqa: ANN401 # a function of JSON
    model, _ = scripted(TWO)
    paused = paused_of(run_tools(model, ASK, Tools().all, needs_approval=is_remove))
    with pytest.raises(ValueError, match=r"not from PausedRun.to_json\(\)") as refused:
        PausedRun.from_json(json.dumps(change(json.loads(paused.to_json()))))
    assert problem in str(refused.value)
    with pytest.raises(ValueError, match="not from PausedRun"):
        PausedRun.from_json("[" * 100_000)


def test_messages_of_any_mapping_are_written() -> None:
    model, _ = scripted(TWO)
    asked = [MappingProxyType({"role": "user", "content": "?"})]
    paused = paused_of(run_tools(model, asked, Tools().all, needs_approval=is_remove))
    assert PausedRun.from_json(paused.to_json()).messages[0] == ASK[0]


def test_a_tool_with_a_schema_of_its_own_gets_arguments_and_the_switch() -> None:
    seen: list[Any] = []
    schema: Any = {"type": "function", "function": {"name": "t", "description": "", "parameters": {
        "type": "object", "properties": {"self": {"type": "string"}, "cancel": {"type": "integer"}}}}}  # fmt: skip

    def work(arguments: Any, cancel: embedllm.Cancel) -> dict[str, int]:  # noqa: ANN401 # JSON
        seen.append((dict(arguments), cancel))
        return {"n": 1}

    async def later(arguments: Any, cancel: embedllm.Cancel) -> str:  # noqa: ANN401 # JSON
        return "awaited"

    cancel = embedllm.Cancel()
    tool = FunctionTool(schema=schema, run=work, arun=later)
    asked = call("t", '{"self": "a", "cancel": 1}')
    model, _ = scripted(asked, "Done.", asked, "Done.")
    assert run_tools(model, ASK, [tool], cancel=cancel).outcomes[0].result == '{"n": 1}'
    assert seen == [({"self": "a", "cancel": 1}, cancel)]
    assert asyncio.run(arun_tools(model, ASK, [tool])).outcomes[0].result == "awaited"


IN_ANOTHER_PROCESS = """
import sys, embedllm
def add(a: int, b: int) -> int:
    '''Add two numbers.

    Args:
        a: one
        b: the other
    '''
    return a + b
paused = embedllm.PausedRun.from_json(sys.stdin.read())
with embedllm.load("demo") as llm:
    reply = embedllm.run_tools(llm, paused, [add], embedllm.Sampling(temperature=0.0), max_tokens=20,
                               decisions={paused.pending[0].id: {"a": 2, "b": 3}})
print(reply.outcomes[0].result, reply.completion.finish_reason)
print(reply.text)
"""


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


def paused_demo(model: Model) -> PausedRun:
    asked: list[Message] = [{"role": "user", "content": "Add two numbers."}]
    reply = run_tools(model, asked, [add], Sampling(temperature=0.0), tool_choice="add", max_tokens=100,
                      needs_approval=lambda one: True)  # fmt: skip
    return paused_of(reply)


@pytest.mark.slow
def test_the_demo_is_resumed_in_another_process_and_reads_its_prefix_from_the_cache_in_this_one() -> None:
    with embedllm.load("demo") as model:
        paused = paused_demo(model)
        here = run_tools(model, paused, [add], Sampling(temperature=0.0), max_tokens=20,
                         decisions={paused.pending[0].id: {"a": 2, "b": 3}})  # fmt: skip
        statistics = here.completion.statistics
        before = len(model.prompt_tokens(paused.messages[:-1], tools=[add]))
        assert statistics.cached_tokens >= before
    there = subprocess.run([sys.executable, "-c", IN_ANOTHER_PROCESS], input=paused.to_json(), capture_output=True,
                           text=True, check=True, timeout=120)  # fmt: skip
    result, text = there.stdout.split("\n", 1)
    assert result.split()[0] == here.outcomes[0].result == "5"
    assert text.rstrip("\n") == here.text
