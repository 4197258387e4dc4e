"""Tools of MCP servers in Responses: a real server over stdio, approvals, limits, and what is refused."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.serving import WAIT_S, client, serving
from tests.support.scripted import call, scripted

pytest.importorskip("mcp")

from embedllm.integrations.mcp import McpServers
from embedllm.text.function_schema import FunctionTool

ROOT = Path(__file__).parents[2]
FRIENDLY = {"command": sys.executable, "args": ["-m", "tests.integrations.mcp.friendly_server"],
            "env": {"PYTHONPATH": str(ROOT)}}  # fmt: skip
MCP = {"type": "mcp", "server_label": "friendly"}
NEVER = {**MCP, "require_approval": "never", "allowed_tools": ["add", "fail"]}
ADD = call("add", '{"a": 2, "b": 3}')
ASK = {"role": "user", "content": "Add 2 and 3."}
CLIENTS = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def servers() -> Iterator[Mapping[str, Mapping[str, FunctionTool]]]:
    with McpServers({"friendly": FRIENDLY}, timeout_s=30) as found:
        yield found.tools_by_server


@contextmanager
def talking(servers: Any, *replies: str) -> Iterator[tuple[httpx.Client, list[str]]]:  # noqa: ANN401
    """A server of a model that says these replies, and its prompts."""
    model, prompts = scripted(*replies)
    with serving(model=model, tool_servers=servers) as served, client(served) as http:
        yield http, prompts


def ask(http: httpx.Client, **body: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    response = http.post("/v1/responses", json={"input": [ASK], **body})
    assert response.status_code == 200, response.text
    return response.json()


def kinds(response: Mapping[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def test_a_tool_runs_here_and_the_model_answers(servers: Any) -> None:  # noqa: ANN401
    with talking(servers, f"Let me see.{ADD}", "It is 5.", "Yes.") as (http, prompts):
        found = ask(http, tools=[NEVER])
        assert kinds(found) == ["mcp_list_tools", "message", "mcp_call", "message"]
        listed, _, ran, said = found["output"]
        assert [tool["name"] for tool in listed["tools"]] == ["add", "fail"]
        assert listed["tools"][0]["input_schema"]["required"] == ["a"]
        assert (ran["server_label"], ran["name"], json.loads(ran["arguments"])) == ("friendly", "add", {"a": 2, "b": 3})
        assert (ran["output"], ran["error"], ran["status"]) == ("5", None, "completed")
        assert said["content"][0]["text"] == "It is 5."
        assert "\n5\n" in prompts[1]
        assert found["usage"]["output_tokens"] == len(f"Let me see.{ADD}") + len("It is 5.") + 2  # of both replies
        more = ask(http, tools=[NEVER], previous_response_id=found["id"], input="Sure?")
        assert kinds(more) == ["message"]  # the tools were listed before
        assert prompts[2].startswith(prompts[1])  # and so the prefix is read from the cache


def test_the_events_of_a_run_are_put_together_by_openais_client(servers: Any) -> None:  # noqa: ANN401
    openai = pytest.importorskip("openai")
    model, _ = scripted(ADD, "It is 5.")
    with serving(model=model, tool_servers=servers) as served:
        gpt = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        with gpt.responses.stream(model="demo", input="Add.", tools=[NEVER]) as stream:
            events = list(stream)
            final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type.removeprefix("response.") for event in events if "mcp" in event.type]
    assert names[:3] == ["mcp_list_tools.in_progress", "mcp_list_tools.completed", "mcp_call.in_progress"]
    assert names[-2:] == ["mcp_call_arguments.done", "mcp_call.completed"]
    done = {event.output_index: event.item for event in events if event.type == "response.output_item.done"}
    assert [done[place].type for place in sorted(done)] == ["mcp_list_tools", "mcp_call", "message"]
    assert [item.id for item in final.output] == [done[place].id for place in sorted(done)]
    assert final.output_text == "It is 5."
    assert final.output[1].output == "5"


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("approve", [True, False])
def test_a_call_waits_for_its_approval_and_goes_on_with_it(servers: Any, keeps: bool, approve: bool) -> None:  # noqa: ANN401
    with talking(servers, f"I add.{ADD}", "Done.", "Bye.") as (http, prompts):
        first = ask(http, tools=[MCP], store=keeps)
        assert kinds(first) == ["mcp_list_tools", "message", "mcp_approval_request"]
        request = first["output"][-1]
        assert (request["name"], json.loads(request["arguments"])) == ("add", {"a": 2, "b": 3})
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve,
                  "reason": None if approve else "too hard"}  # fmt: skip
        before = {"previous_response_id": first["id"]} if keeps else {}
        items = [answer] if keeps else [ASK, *first["output"], answer]
        second = ask(http, tools=[MCP], store=keeps, input=items, **before)
        assert kinds(second) == (["mcp_call", "message"] if approve else ["message"])
        if approve:
            ran = second["output"][0]
            assert (ran["approval_request_id"], ran["output"]) == (request["id"], "5")
        assert ("\n5\n" if approve else "declined the call: too hard") in prompts[1]
        assert prompts[1].startswith(prompts[0])
        before = {"previous_response_id": second["id"]} if keeps else {}
        again = "Thanks." if keeps else [*items, *second["output"], {"role": "user", "content": "Thanks."}]
        ask(http, tools=[MCP], store=keeps, input=again, **before)
        assert prompts[2].startswith(prompts[1])  # the call ran once, and its result stays


def test_an_approval_can_be_answered_once_and_only_for_a_request_that_there_is(servers: Any) -> None:  # noqa: ANN401
    def refused(**body: Any) -> str:  # noqa: ANN401
        response = http.post("/v1/responses", json=body)
        assert response.status_code == 400, response.text
        return response.json()["error"]["message"]

    with talking(servers, ADD, "Fine.") as (http, prompts):
        first = ask(http, tools=[MCP])
        asked = first["output"][-1]["id"]
        answer = {"type": "mcp_approval_response", "approval_request_id": asked, "approve": True}
        before = {"previous_response_id": first["id"]}
        assert "not in front" in refused(tools=[MCP], input=[{**answer, "approval_request_id": "mcpr_1"}], **before)
        assert "answered already" in refused(tools=[MCP], input=[answer, answer], **before)
        assert "send them with each request" in refused(input=[answer], **before)
        assert "true or false" in refused(tools=[MCP], input=[{**answer, "approve": "yes"}], **before)
        ask(http, tools=[MCP], input="Never mind.", **before)
        assert "the call was not approved" in prompts[-1]


def test_a_failure_is_a_result_that_the_model_reads(servers: Any) -> None:  # noqa: ANN401
    replies = (call("fail", '{"reason": "no luck"}'), call("add", '{"a": "x"}'), "<tool_call>\n{", "I give up.")
    with talking(servers, *replies) as (http, prompts):
        found = ask(http, tools=[NEVER])
    runs = [item for item in found["output"] if item["type"] == "mcp_call"]
    assert [run["status"] for run in runs] == ["failed", "failed"]
    assert "no luck" in runs[0]["error"]["content"][0]["text"]
    assert "no luck" in prompts[1]
    assert "'a'" in runs[1]["error"]["content"][0]["text"]  # it never reached the server


def test_clients_tools_and_the_limit_of_calls_end_the_response(servers: Any) -> None:  # noqa: ANN401
    with talking(servers, ADD + "\n" + call("shell", "{}"), "ok") as (http, prompts):
        found = ask(http, tools=[NEVER, CLIENTS])
        assert kinds(found) == ["mcp_list_tools", "mcp_call", "function_call"]
        output = {"type": "function_call_output", "call_id": found["output"][-1]["call_id"], "output": "files"}
        ask(http, tools=[NEVER, CLIENTS], previous_response_id=found["id"], input=[output])
        assert prompts[1].index("\n5\n") < prompts[1].index("\nfiles\n")
    with talking(servers, ADD, "Enough.") as (http, prompts):
        found = ask(http, tools=[NEVER], max_tool_calls=1)
        assert kinds(found) == ["mcp_list_tools", "mcp_call", "message"]
        assert "<tools>" in prompts[0]


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ({**MCP, "server_url": "https://evil.example/mcp"}, "no address of a request is opened"),
        ({**MCP, "connector_id": "connector_gmail"}, "connector_id"),
        ({"type": "mcp", "server_label": "other"}, "'friendly'"),
        ({"type": "mcp"}, "server_label"),
        ({**MCP, "allowed_tools": ["rm"]}, "names 'rm'"),
        ({**MCP, "allowed_tools": {"read_only": True}}, "allowed_tools"),
        ({**MCP, "require_approval": "sometimes"}, "require_approval"),
        ({**MCP, "require_approval": {"never": {"read_only": True}}}, "require_approval.never"),
    ],
)
def test_what_is_no_configured_tool_is_refused(servers: Any, tool: dict[str, Any], says: str) -> None:  # noqa: ANN401
    with talking(servers) as (http, _):
        response = http.post("/v1/responses", json={"input": "x", "tools": [tool]})
        assert response.status_code == 400
        assert says in response.json()["error"]["message"]


def test_approvals_can_be_asked_for_by_tool(servers: Any) -> None:  # noqa: ANN401
    rule = {**MCP, "require_approval": {"never": {"tool_names": ["add"]}}}
    with talking(servers, ADD, call("fail", '{"reason": "x"}')) as (http, _):
        assert kinds(ask(http, tools=[rule]))[1:] == ["mcp_call", "mcp_approval_request"]


def test_a_run_is_cancelled_when_the_client_goes_away() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def wait(arguments: object, cancel: object) -> str:
        started.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "awake"

    function: Any = {"name": "wait", "parameters": {"type": "object", "properties": {}}}
    tool = FunctionTool(schema={"type": "function", "function": function}, run=lambda *_: "", arun=wait)
    with talking({"files": {"wait": tool}}, call("wait", "{}")) as (http, _):
        body = {"input": "x", "tools": [{**MCP, "server_label": "files", "require_approval": "never"}], "stream": True}
        with http.stream("POST", "/v1/responses", json=body):
            assert started.wait(WAIT_S)
        assert cancelled.wait(WAIT_S)


class MuteError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("mute")


@pytest.mark.parametrize(
    ("outcome", "output", "error"),
    [
        ("name\udcff.txt", "name?.txt", None),
        (["name\udcff.txt"], '["name?.txt"]', None),
        (OSError("no file name\udcff.txt"), None, "error: no file name?.txt"),
        (MuteError(), None, "error: (its text cannot be had: RuntimeError)"),
        (float("nan"), None, "error: Out of range float values are not JSON compliant"),
    ],
)
def test_text_that_is_none_and_errors_that_cannot_speak_are_a_calls_result(
    outcome: object, output: str | None, error: str | None
) -> None:
    def look(*_: object) -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    function: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    tool = FunctionTool(schema={"type": "function", "function": function}, run=look)
    with talking({"files": {"look": tool}}, call("look", "{}"), "Done.") as (http, prompts):
        found = ask(http, tools=[{**MCP, "server_label": "files", "require_approval": "never"}])
        assert kinds(found) == ["mcp_list_tools", "mcp_call", "message"]
        ran = found["output"][1]
        assert ran["output"] == output
        assert ran["error"] is error is None or ran["error"]["content"][0]["text"].startswith(error)
        assert f"\n{output or error}" in prompts[1]


ODD = st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3) | st.just([{}]) | st.just({"a": []})
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(["mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"])},
    optional={
        "id": st.sampled_from(["a", "b"]) | ODD,
        "approval_request_id": st.sampled_from(["a", "b"]) | ODD,
        "server_label": st.just("friendly") | ODD,
        "name": st.just("add") | ODD,
        "arguments": st.just('{"a": 1}') | ODD,
        "approve": ODD,
        "reason": ODD,
        "output": ODD,
        "error": ODD,
    },
)
TOOL = st.fixed_dictionaries({"type": st.just("mcp")}, optional={
    "server_label": st.just("friendly") | ODD,
    "allowed_tools": st.just(["add"]) | ODD,
    "require_approval": st.sampled_from(["never", "always", {"never": ["add"]}, {"always": {"tool_names": 3}}]) | ODD,
})  # fmt: skip


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(items=st.lists(ITEM, max_size=4), tools=st.lists(TOOL, max_size=2), choice=st.just("auto") | TOOL)
def test_malformed_items_and_tools_are_answered_with_an_error_of_the_client(
    odd: httpx.Client, items: list[object], tools: list[object], choice: object
) -> None:
    body = {"input": [ASK, *items], "tools": tools, "tool_choice": choice, "max_output_tokens": 3}
    response = odd.post("/v1/responses", json=body)
    assert response.status_code in (200, 400), (response.text, body)


@pytest.fixture(scope="module")
def odd(servers: Any) -> Iterator[httpx.Client]:  # noqa: ANN401
    with talking(servers, *["ok"] * 2000) as (http, _):
        yield http


def test_the_command_opens_the_servers_of_a_file(tmp_path: Path) -> None:
    from embedllm.cli.commands.serve import _tool_servers

    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"friendly": FRIENDLY}}), encoding="utf-8")
    with _tool_servers(file) as found:
        assert found is not None
        assert "add" in found["friendly"]
