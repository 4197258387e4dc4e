from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from embedllm.generation.chunk import Chunk, Statistics
from embedllm.server.anthropic.reply import EventWriter, MessageHead, message
from embedllm.server.anthropic.request import messages_request
from embedllm.tools.calls import CallDelta, ToolCall
from tests.server import agents

USER = {"role": "user", "content": "hello"}


def read(**body: Any) -> Any:  # noqa: ANN401
    return messages_request({"messages": [USER], "max_tokens": 9, **body})


def chunk(text: str = "", *, token: int | None = 1, reason: str | None = None, **fields: Any) -> Chunk:  # noqa: ANN401
    statistics = Statistics(prompt_tokens=10, cached_tokens=6, tokens=3)
    return Chunk(text=text, token=token, logprob=-1.0, finish_reason=reason, statistics=statistics, **fields)


def called(name: str, pieces: Sequence[str], call: ToolCall) -> list[Chunk]:
    deltas = [chunk(call_deltas=(CallDelta(index=0, id=call.id, name=name, arguments=piece),)) for piece in pieces]
    return [*deltas, chunk(tool_calls=(call,))]


LS = ToolCall(id="abc", name="Bash", arguments={"command": "ls"})
REPLY = [
    chunk(reasoning="I "), chunk(reasoning="think"), chunk("\n\n"), chunk("Look"), chunk(":\n"),
    *called("Bash", ['{"comm', 'and": "ls"}'], LS), chunk("\n"), chunk(reason="stop", stopped_by=7),
]  # fmt: skip


def test_the_conversation_of_claude_code_becomes_messages() -> None:
    first, _, last = (messages_request(body) for body in agents.claude_code())
    assert first.messages[0]["role"] == "system"
    assert str(first.messages[0]["content"]).startswith("You are Claude Code")  # no billing header: it changes
    assert first.messages == last.messages[: len(first.messages)]
    roles = [one["role"] for one in last.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user", "assistant", "tool"]
    reply, listing, failure, *_, image = last.messages[2:]
    assert reply == {
        "role": "assistant",
        "content": "I will look.",
        "reasoning_content": "The user wants a listing.",
        "tool_calls": [
            {"id": "toolu_01A", "type": "function",
             "function": {"name": "Bash", "arguments": {"command": "ls", "description": "List files"}}},
            {"id": "toolu_01B", "type": "function",
             "function": {"name": "Read", "arguments": {"file_path": "/src/a.py"}}},
        ],
    }  # fmt: skip
    assert listing == {"role": "tool", "tool_call_id": "toolu_01A", "name": "Bash", "content": "a.py\nb.py"}
    assert failure["content"] == "<tool_use_error>File does not exist.</tool_use_error>"
    assert image["content"] == "[an image, which this model cannot see]"
    assert [tool["function"]["name"] for tool in first.options["tools"]] == ["Bash", "Read", "TodoWrite"]  # type: ignore[index, union-attr]
    assert first.options.get("variables") == {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
    assert first.warnings == ["the tool 'web_search_20250305' does not run here and was left out"]
    assert "redacted_thinking" in last.warnings[1]


def test_a_file_in_the_result_of_a_tool_is_noted_and_ends_no_session() -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    use = {"type": "tool_use", "id": "a", "name": "Read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "a.pdf:"}, pdf]}
    messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    found = messages_request({"messages": messages, "max_tokens": 1}).messages
    assert found[-1]["content"] == "a.pdf:\n[a document, which this model cannot read]"


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "x"}, "x"),
    ],
)
def test_tool_choice(given: dict[str, Any], becomes: str) -> None:
    tools = [{"name": "x", "input_schema": {"type": "object"}}]
    assert read(tools=tools, tool_choice=given).options["tool_choice"] == becomes
    assert "tool_choice" not in read(tool_choice=given).options
    assert read(tools=tools, tool_choice={**given, "disable_parallel_tool_use": True}).one_call


def test_options_and_prefill() -> None:
    found = read(stop_sequences=["END", ""], temperature=0.5, top_k=3, top_p=0.9, system="short")
    assert found.options == {"max_tokens": 9, "stop": ("END",), "temperature": 0.5, "top_k": 3, "top_p": 0.9}
    assert found.messages[0] == {"role": "system", "content": "short"}
    answered = read(messages=[USER, {"role": "assistant", "content": "The answer is ("}])
    assert answered.options["continue_final_message"]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = read(output_config={"format": {"type": "json_schema", "schema": schema}}).options["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    assert read(thinking={"type": "disabled"}).options["variables"] == {"enable_thinking": False, "thinking": False}
    bash = read(tools=[{"type": "bash_20250124", "name": "bash"}]).options["tools"][0]["function"]
    assert bash["parameters"]["properties"].keys() == {"command", "restart"}
    error = {"type": "tool_result", "tool_use_id": "x", "is_error": True, "content": "no such file"}
    assert read(messages=[{"role": "user", "content": [error]}]).messages[0]["content"] == "Error: no such file"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": [{"role": "tool", "content": ""}]}, r"messages\.0\.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "expected 'base64'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"messages\.0\.content\.0\.text"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "input"),
        ({"messages": [{"role": "user", "content": 3}]}, "expected a list"),
        ({"messages": [{"role": "user", "content": []}]}, r"messages\.0\.content is \[\]; expected text or at least"),
        ({"tools": [{"input_schema": {}}]}, r"tools\.0\.name"),
        ({"tools": [{"name": "a", "input_schema": 3}]}, "input_schema"),
        ({"tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "all"}}, "tool_choice"),
        ({"thinking": {"type": "on"}}, r"thinking\.type"),
        ({"output_config": {"format": {"type": "xml"}}}, r"output_config\.format"),
        ({"system": [3]}, r"system\.0"),
    ],
)
def test_what_cannot_be_followed_is_said(body: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(**body)


def test_the_events_of_a_reply_are_those_that_anthropic_documents() -> None:
    writer = EventWriter(MessageHead(model="demo", id="msg_1"))
    events = [one for part in REPLY for one in writer.push(part)]
    kinds = [(one["type"], one.get("index")) for one in events]
    assert kinds == [
        ("message_start", None), ("ping", None),
        ("content_block_start", 0), *[("content_block_delta", 0)] * 3, ("content_block_stop", 0),
        ("content_block_start", 1), *[("content_block_delta", 1)] * 2, ("content_block_stop", 1),
        ("content_block_start", 2), *[("content_block_delta", 2)] * 2, ("content_block_stop", 2),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "I "}, {"type": "thinking_delta", "thinking": "think"},
        {"type": "signature_delta", "signature": "embedllm"},
        {"type": "text_delta", "text": "\n\nLook"}, {"type": "text_delta", "text": ":\n"},
        {"type": "input_json_delta", "partial_json": '{"comm'},
        {"type": "input_json_delta", "partial_json": 'and": "ls"}'},
    ]  # fmt: skip
    usage = {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 6}
    start = events[0]["message"]
    assert isinstance(start, dict)
    assert start["usage"] == {**usage, "output_tokens": 0}
    assert events[-2] == {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                          "usage": {**usage, "output_tokens": 3}}  # fmt: skip


def test_a_whole_message_has_the_same_blocks() -> None:
    found = message(MessageHead(model="demo", id="msg_1", warnings=["x"]), REPLY)
    assert found["content"] == [
        {"type": "thinking", "thinking": "I think", "signature": "embedllm"},
        {"type": "text", "text": "\n\nLook:\n"},
        {"type": "tool_use", "id": "abc", "name": "Bash", "input": {"command": "ls"}},
    ]
    assert (found["stop_reason"], found["warnings"]) == ("tool_use", ["x"])


def test_stop_reasons() -> None:
    def stop(last: Chunk, **head: Any) -> tuple[Any, Any]:  # noqa: ANN401
        found = message(MessageHead(model="demo", **head), [chunk("a"), last])
        return found["stop_reason"], found["stop_sequence"]

    assert stop(chunk(reason="stop", stopped_by=7)) == ("end_turn", None)
    assert stop(chunk(reason="stop", stopped_by="END"), stop_sequences=("END",)) == ("stop_sequence", "END")
    special = {"stop_sequences": ("<|im_end|>",), "token_text": lambda token: "<|im_end|>"}
    assert stop(chunk(reason="stop", stopped_by=7), **special) == ("stop_sequence", "<|im_end|>")
    assert stop(chunk(reason="length")) == ("max_tokens", None)
    assert stop(chunk(reason="context")) == ("model_context_window_exceeded", None)
    with pytest.raises(TimeoutError):
        stop(chunk(reason="timeout"))


def test_a_call_that_cannot_be_read_is_never_dropped_nor_repaired() -> None:
    broken = ToolCall(id="abc", name="Bash", problem="no JSON", text='{"command": "rm -r /tm')
    for pieces in ([], ['{"command": "rm ', "-r /tm"]):
        reply = [*called("Bash", pieces, broken), chunk(reason="stop", stopped_by=7)]
        writer = EventWriter(MessageHead(model="demo"))
        deltas = [one["delta"] for part in reply for one in writer.push(part) if one["type"] == "content_block_delta"]
        assert "".join(one["partial_json"] for one in deltas) == broken.text  # type: ignore[index, call-overload, misc]
        (block,) = message(MessageHead(model="demo"), reply)["content"]  # type: ignore[misc, str-unpack]
        assert block["input"] == {"text": broken.text}  # type: ignore[index, call-overload]
    nameless = ToolCall(id="abc", name="", problem="no name", text="<tool_call>{}</tool_call>")
    found = message(MessageHead(model="demo"), [chunk(tool_calls=(nameless,)), chunk(reason="stop")])
    assert found["content"] == [{"type": "text", "text": nameless.text}]
    assert found["stop_reason"] == "end_turn"
    json.dumps(found)
