from __future__ import annotations

from typing import Any

import pytest

from embedllm.generation.chunk import Chunk
from embedllm.server.responses.items import pack_reasoning
from embedllm.server.responses.reply import ResponseHead, ResponseWriter
from embedllm.server.responses.request import responses_request
from embedllm.server.responses.store import ResponseStore
from embedllm.tools.calls import ToolCall
from tests.server import agents
from tests.server.test_anthropic import REPLY, called, chunk


def read(**body: Any) -> Any:  # noqa: ANN401
    return responses_request({"input": "hello", **body}, [])


def events(chunks: list[Chunk], **body: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    asked = read(**body)
    head = ResponseHead(model="demo", body=body, tools=asked.tools, spelled=lambda token: (str(token), None),
                        has_logprobs=asked.has_logprobs, packs_reasoning=asked.packs_reasoning)  # fmt: skip
    writer = ResponseWriter(head)
    found = [one for part in chunks for one in writer.push(part)]
    return [*found, *writer.end()]


def test_the_conversation_of_codex_becomes_messages() -> None:
    first, _, last = (responses_request(body, []) for body in agents.codex())
    assert first.messages == last.messages[: len(first.messages)]
    assert [one["role"] for one in last.messages] == [
        "system", "user", "user", "assistant", "tool", "tool", "assistant", "tool", "tool", "user"]  # fmt: skip
    system, _, _, reply, listing, patched, later, found, shell, _ = last.messages
    assert str(system["content"]).endswith("</permissions instructions>")  # one message of both
    assert reply["content"] == "I will look."
    assert reply["reasoning_content"] == "**Listing files**"
    assert [call["function"] for call in reply["tool_calls"]] == [  # type: ignore[index, union-attr, call-overload]
        {"name": "shell_command", "arguments": '{"command":"ls"}'},
        {"name": "apply_patch", "arguments": '{"input": "*** Begin Patch\\n*** End Patch"}'},
    ]
    assert listing == {"role": "tool", "tool_call_id": "call_1", "name": "shell_command", "content": "a.py\nb.py"}
    assert patched["name"] == "apply_patch"
    assert [call["function"] for call in later["tool_calls"]] == [  # type: ignore[index, union-attr, call-overload]
        {"name": "mcp__docs__search", "arguments": '{"query":"a"}'},
        {"name": "local_shell", "arguments": '{"command": ["ls", "-l"], "timeout_ms": 1000}'},
    ]
    assert found["content"] == "found\n[an image, which this model cannot see]"
    assert (shell["name"], shell["content"]) == ("local_shell", "total 0")
    names = [tool["function"]["name"] for tool in first.options["tools"]]  # type: ignore[index, union-attr]
    assert names == ["shell_command", "update_plan", "apply_patch", "mcp__docs__search", "local_shell"]
    assert [warning.split("'")[1] for warning in last.warnings] == [
        "web_search", "image_generation", "tool_search", "web_search_call"]  # fmt: skip
    assert first.options.get("variables") == {"reasoning_effort": "medium"}


def test_a_file_in_the_result_of_a_tool_is_noted_and_not_in_the_prompt() -> None:
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    call = {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"}
    output = [{"type": "input_text", "text": "a.pdf:"}, file]
    found = read(input=[call, {"type": "function_call_output", "call_id": "a", "output": output}])
    assert found.messages[-1]["content"] == "a.pdf:\n[a file, which this model cannot read]"


def test_tool_choice() -> None:
    tools = [{"type": "function", "name": name} for name in "ab"]
    for choice, becomes in (("required", "required"), ("none", "none"), ({"type": "function", "name": "a"}, "a")):
        assert read(tools=tools, tool_choice=choice).options["tool_choice"] == becomes
    allowed = read(tools=tools, tool_choice={"type": "allowed_tools", "mode": "required",
                                             "tools": [{"type": "function", "name": "b"}]})  # fmt: skip
    assert (len(allowed.options["tools"]), allowed.options["tool_choice"]) == (1, "required")
    web = read(tools=[*tools, {"type": "web_search"}], tool_choice={"type": "web_search"})
    assert web.options["tool_choice"] == "auto"
    assert len(web.warnings) == 2
    assert "tools" not in read(tools=[{"type": "file_search"}], tool_choice="required").options
    assert read(parallel_tool_calls=False).one_call


def test_formats_and_reasoning() -> None:
    schema = {"type": "object", "properties": {}}
    form = read(text={"format": {"type": "json_schema", "name": "x", "schema": schema}}).options["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert "response_format" not in read(text={"format": {"type": "text"}, "verbosity": "low"}).options
    assert read(reasoning={"effort": "none"}).options["variables"] == {"enable_thinking": False, "thinking": False}
    kept = {"type": "reasoning", "summary": [], "encrypted_content": pack_reasoning("I thought \ud800")}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
    assert read(input=[kept, said]).messages == [
        {"role": "assistant", "content": "yes", "reasoning_content": "I thought \ud800"}]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": []}, "input is empty"),
        ({"input": [{}]}, r"input\.0\.role is None; expected 'user'"),
        ({"input": [{"role": "robot", "content": "x"}]}, r"input\.0\.role"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}, r"input\.0\.arguments"),
        ({"input": [{"type": "function_call_output", "output": "b"}]}, r"input\.0\.call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "has no 'image_url'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "not stored here"),
        ({"tools": [{"type": "function"}]}, r"tools\.0\.name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": 3}]}, r"tools\.0\.tools"),
        ({"tools": [{"type": "function", "name": "a"}] * 2}, "named 'a'"),
        ({"tool_choice": {"type": "function", "name": "a"}}, "none of the tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, r"text\.format"),
        ({"reasoning": {"effort": "huge"}}, r"reasoning\.effort"),
        ({"reasoning": {"effort": ["high"]}}, r"reasoning\.effort"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": [{"type": "additional_tools", "tools": 1.5}]}, r"input\.0\.tools is 1.5; expected a list"),
        ({"tool_choice": {"type": "allowed_tools", "tools": True}}, r"tool_choice\.tools is True; expected a list"),
    ],
)
def test_what_cannot_be_followed_is_said(body: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(**body)


def test_the_events_of_a_reply_come_in_openai_s_order() -> None:
    found = events(REPLY, store=False, tools=[{"type": "function", "name": "Bash"}])
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    assert [one["type"].removeprefix("response.") for one in found] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    response = found[-1]["response"]
    assert response["output"] == [one["item"] for one in found if one["type"] == "response.output_item.done"]
    thought, said, call = response["output"]
    assert thought["encrypted_content"] == pack_reasoning("I think")
    assert said["content"][0]["text"] == "\n\nLook:\n"
    assert (call["name"], call["arguments"], call["call_id"]) == ("Bash", '{"command": "ls"}', "abc")
    assert response["usage"] == {
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 0},
        "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 13,
    }  # fmt: skip
    again = responses_request({"input": response["output"]}, [])  # what comes out can go in
    assert again.messages[0]["reasoning_content"] == "I think"


def test_calls_of_other_kinds_are_items_of_these_kinds() -> None:
    def item(arguments: str, *tools: dict[str, Any], name: str, **given: Any) -> dict[str, Any]:  # noqa: ANN401
        call = ToolCall(id="abc", name=name, **given)
        found = events([*called(name, [arguments], call), chunk(reason="stop")], tools=list(tools))
        return found[-1]["response"]["output"][0]

    custom = {"type": "custom", "name": "apply_patch"}
    patch = item('{"input": "*** Begin"}', custom, name="apply_patch")
    assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin")
    shell = item('{"command": ["ls"], "timeout_ms": 5}', {"type": "local_shell"}, name="local_shell")
    assert shell["type"] == "local_shell_call"
    assert shell["action"] == {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5}
    cut = item('{"command": ["rm", "-r", "/tm', {"type": "local_shell"}, name="local_shell", problem="no JSON",
               text="x")  # fmt: skip
    assert cut["action"]["command"] == []  # nothing that runs
    space = {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find"}]}
    found = item("{}", space, name="crm__find")
    assert (found["type"], found["name"], found["namespace"]) == ("function_call", "find", "crm")
    assert item("{}", name="made_up")["name"] == "made_up"


def test_a_reply_that_is_cut_off_is_incomplete() -> None:
    found = events([chunk("a"), chunk("b", reason="length")])[-1]
    assert found["type"] == "response.incomplete"
    assert found["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found["response"]["output"][0]["status"] == "incomplete"


def test_the_store_is_bounded_and_keeps_conversations_that_go_on() -> None:
    store = ResponseStore(most=3)

    def put(name: str, previous: str | None = None) -> None:
        store.put({"id": name, "output": [{"id": f"out_{name}"}]}, [{"id": f"in_{name}"}], previous)

    put("a")
    put("b", "a")
    put("x")
    found = store.conversation("b")
    assert found is not None
    assert [item["id"] for item in found] == ["in_a", "out_a", "in_b", "out_b"]
    put("y")  # x goes, as nobody has asked for it since
    assert (store.get("x"), store.item("out_x")) == (None, None)
    assert store.conversation("b") == found
    assert store.delete("a")
    assert not store.delete("a")
    assert store.conversation("b") is None
    small = ResponseStore(most_bytes=300)
    for place in range(20):
        small.put({"id": str(place), "output": ["x" * 100][:0], "text": "x" * 100}, [], None)
    assert small.get("19") is not None
    assert small.get("0") is None
