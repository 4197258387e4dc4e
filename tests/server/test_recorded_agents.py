"""Requests that Claude Code and Codex sent (agents/record.py), answered again by the server."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import pytest

from tests.server import agents
from tests.server.agents.record import CONTEXT
from tests.server.serving import client, serving
from tests.support.scripted import call, scripted

LEAST_CACHED = 0.95  # of the prompt before


def asked(recording: agents.Recording, *, is_stream: bool) -> tuple[list[httpx.Response], list[str]]:
    """The responses to all requests, and the prompts that the model was given."""
    model, prompts = scripted(*["Done."] * len(recording.bodies), context=CONTEXT)
    with serving(model=model) as served, client(served) as http:
        responses = [http.post(recording.path, headers=recording.headers, json={**body, "stream": is_stream})
                     for body in recording.bodies]  # fmt: skip
    return responses, prompts


def shared(first: str, second: str) -> int:
    """Characters that two texts begin with alike."""
    return next((place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
                min(len(first), len(second)))  # fmt: skip


def results(value: Any) -> list[str]:  # noqa: ANN401  # JSON
    """Texts of results of tools, in the items of a request."""
    if isinstance(value, list):
        return [text for one in value for text in results(one)]
    if not isinstance(value, dict):
        return []
    found = value.get("output", value.get("content"))
    if value.get("type") in ("tool_result", "function_call_output") and isinstance(found, str):
        return [found]
    return results(value.get("content"))


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_recorded_requests_are_answered_with_all_that_they_say(name: str) -> None:
    recording = agents.recording(name)
    assert len(recording.bodies) >= 5
    for is_stream in (True, False):
        responses, prompts = asked(recording, is_stream=is_stream)
        assert [response.status_code for response in responses] == [200] * len(recording.bodies)
        for body, prompt in zip(recording.bodies, prompts, strict=True):
            assert all(text in prompt for text in results(body[recording.items]))
        for response in responses:
            if not is_stream:
                assert set(response.json().get("warnings", ())) <= {
                    "the tool 'web_search' does not run here and was left out"
                }
                continue
            events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
            assert events[-1]["type"] in ("message_stop", "response.completed")


def test_the_prompts_of_recorded_codex_begin_with_the_ones_before() -> None:
    _, prompts = asked(agents.recording("codex"), is_stream=False)
    for before, prompt in itertools.pairwise(prompts):
        assert shared(before, prompt) >= LEAST_CACHED * len(before)


def test_the_prompts_of_recorded_claude_code_begin_with_the_ones_before_unless_it_found_tools() -> None:
    recording = agents.recording("claude_code")
    _, prompts = asked(recording, is_stream=False)
    found = [sum(tool.get("defer_loading", False) for tool in body["tools"]) for body in recording.bodies]
    assert len(set(found)) == 2  # there is a search for tools
    for place in range(1, len(prompts)):
        before, prompt = prompts[place - 1 : place + 1]
        alike = shared(before, prompt)
        last = recording.bodies[place - 1]["tools"][-1]["name"]
        is_same = found[place] == found[place - 1]
        assert alike >= (LEAST_CACHED * len(before) if is_same else before.index(f'"name": "{last}"'))


def test_deferred_tools_are_there_once_a_search_has_found_them() -> None:
    def tool(name: str, **more: object) -> dict[str, Any]:
        return {"name": name, "input_schema": {"type": "object", "properties": {}}, **more}

    tools = [tool("early", defer_loading=True), tool("find"), tool("late", defer_loading=True), tool("look")]
    said: list[Any] = [{"role": "user", "content": "hi"}]
    used = {"type": "tool_use", "id": "a", "name": "find", "input": {}}
    names = [{"type": "tool_reference", "tool_name": name} for name in ("late", "gone", "late")]
    result = {"type": "tool_result", "tool_use_id": "a", "content": names}
    more = [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    model, prompts = scripted("ok", call("late", "{}"))
    with serving(model=model) as served, client(served) as http:
        for messages in (said, said + more):
            body = {"max_tokens": 99, "messages": messages, "tools": tools}
            last = http.post("/v1/messages", json=body).json()
    heads = [prompt.partition("<|im_end|>")[0] for prompt in prompts]
    shown = [[one["name"] for one in tools if f'"name": "{one["name"]}"' in head] for head in heads]
    assert shown == [["find", "look"], ["find", "late", "look"]]
    assert prompts[1].index('"name": "look"') < prompts[1].index('"name": "late"')  # what was cached stays in front
    assert last["content"][0]["name"] == "late"
