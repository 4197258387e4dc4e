"""Messages and Responses over a real connection, by the clients of Anthropic and OpenAI, as agents use them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server import agents
from tests.server.serving import Served, wait_until

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

ASK = [{"role": "user", "content": "list files by size"}]
GREEDY: Any = {"extra_body": {"temperature": 0}}
BASH: Any = {"name": "Bash", "description": "Runs a command.",
             "input_schema": {"type": "object", "properties": {"command": {"type": "string"}},
                              "required": ["command"]}}  # fmt: skip
SHELL: Any = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
              "parameters": BASH["input_schema"]}  # fmt: skip
SYSTEM = "You are a coding agent. " + "Use the tools to look before you answer. " * 20
LEAST_CACHED = 0.95  # of the prompt before


@pytest.fixture
def claude(served: Served) -> Iterator[Any]:  # of a package that may not be there
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_message_is_the_librarys_reply(served: Served, claude: Any) -> None:  # noqa: ANN401
    own = served.model.chat(ASK, temperature=0.0)
    found = claude.messages.create(model="demo", max_tokens=99, messages=ASK, **GREEDY)
    assert [(block.type, block.text) for block in found.content] == [("text", own.text)]
    assert (found.stop_reason, found.role, found.model) == ("end_turn", "assistant", "demo")
    usage = found.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == own.statistics.prompt_tokens
    assert usage.output_tokens == own.statistics.tokens
    counted = claude.messages.count_tokens(model="demo", messages=ASK)
    assert counted.input_tokens == own.statistics.prompt_tokens
    with claude.messages.stream(model="demo", max_tokens=99, messages=ASK, **GREEDY) as stream:
        assert "".join(stream.text_stream) == own.text
        assert stream.get_final_message().usage.output_tokens == usage.output_tokens
    cut = claude.messages.create(model="demo", max_tokens=2, messages=ASK, **GREEDY)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    word = own.text.split()[-1]
    stopped = claude.messages.create(model="demo", max_tokens=99, messages=ASK, stop_sequences=[word], **GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)


def test_a_tool_loop_of_anthropics_client_reads_its_prefix_from_the_cache(claude: Any) -> None:  # noqa: ANN401
    messages: list[Any] = [{"role": "user", "content": "Show the files of this folder."}]
    before = 0
    for turn in range(4):
        with claude.messages.stream(model="demo", max_tokens=60, system=SYSTEM, messages=messages, tools=[BASH],
                                    tool_choice={"type": "any"}, **GREEDY) as stream:  # fmt: skip
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            reply = stream.get_final_message()
        (call,) = [block for block in reply.content if block.type == "tool_use"]
        assert reply.stop_reason == "tool_use"
        assert isinstance(call.input["command"], str)
        assert len(pieces) > 1  # streamed
        usage = reply.usage
        if turn:
            assert usage.cache_read_input_tokens >= LEAST_CACHED * before
        before = usage.input_tokens + usage.cache_read_input_tokens + usage.output_tokens
        result = {"type": "tool_result", "tool_use_id": call.id, "content": f"a.py\nb{turn}.py"}
        messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]


def test_the_requests_of_claude_code_are_answered_from_the_cache(http: httpx.Client) -> None:
    before = 0
    for turn, body in enumerate(agents.claude_code()):
        response = http.post("/v1/messages?beta=true", json={**body, "stream": False, "max_tokens": 8},
                             headers={"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"})  # fmt: skip
        assert response.status_code == 200, response.text
        found = response.json()
        assert "web_search" in found["warnings"][0]
        usage = found["usage"]
        if turn:
            assert usage["cache_read_input_tokens"] >= LEAST_CACHED * before
        before = usage["input_tokens"] + usage["cache_read_input_tokens"]
        counted = http.post("/v1/messages/count_tokens", json={k: v for k, v in body.items() if k != "max_tokens"})
        assert counted.json() == {"input_tokens": before}


def test_errors_of_messages_have_anthropics_form(claude: Any, http: httpx.Client) -> None:  # noqa: ANN401
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(model="claude-none", max_tokens=9, messages=ASK)
    assert unknown.value.body["error"]["type"] == "not_found_error"
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]}]
    with pytest.raises(anthropic.BadRequestError, match="reads text only") as odd:
        claude.messages.create(model="demo", max_tokens=9, messages=image)
    assert odd.value.body["error"]["type"] == "invalid_request_error"
    long = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(anthropic.BadRequestError, match="tokens"):
        claude.messages.create(model="demo", max_tokens=9, messages=long, stream=True)
    missing = http.post("/v1/messages", json={"messages": ASK})
    assert (missing.status_code, missing.json()["type"]) == (400, "error")
    assert "max_tokens" in missing.json()["error"]["message"]


def test_a_response_is_the_librarys_reply_and_is_kept(served: Served, gpt: Any) -> None:  # noqa: ANN401
    own = served.model.chat(ASK, temperature=0.0)
    found = gpt.responses.create(model="demo", input="list files by size", temperature=0)
    assert (found.output_text, found.status, found.object) == (own.text, "completed", "response")
    assert found.usage.input_tokens == own.statistics.prompt_tokens
    assert found.usage.output_tokens == own.statistics.tokens
    assert gpt.responses.retrieve(found.id) == found
    second = gpt.responses.create(model="demo", input="and by date?", previous_response_id=found.id, temperature=0)
    assert second.usage.input_tokens_details.cached_tokens >= LEAST_CACHED * found.usage.total_tokens - 1
    assert [item.type for item in gpt.responses.input_items.list(second.id).data] == ["message"] * 3
    gpt.responses.delete(found.id)
    with pytest.raises(openai.NotFoundError):
        gpt.responses.retrieve(found.id)
    with pytest.raises(openai.BadRequestError) as gone:
        gpt.responses.create(model="demo", input="and?", previous_response_id=found.id)
    assert gone.value.code == "previous_response_not_found"
    loose = gpt.responses.create(model="demo", input="hello", store=False)
    with pytest.raises(openai.NotFoundError):
        gpt.responses.retrieve(loose.id)


def test_a_streamed_response_is_what_openais_client_puts_together(gpt: Any) -> None:  # noqa: ANN401
    with gpt.responses.stream(model="demo", input="list files by size", temperature=0, top_logprobs=2) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == final.output_text
    assert all(len(token.top_logprobs) == 2 for event in deltas for token in event.logprobs)
    assert len(final.output[0].content[0].logprobs) == final.usage.output_tokens - 1
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    found = gpt.responses.create(model="demo", input="How many?", text=form, max_output_tokens=60, temperature=0)
    if found.status == "completed":
        assert set(json.loads(found.output_text)) == {"n"}
    cut = gpt.responses.create(model="demo", input="list files by size", max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("keeps", [True, False])
def test_a_tool_loop_of_openais_client_reads_its_prefix_from_the_cache(gpt: Any, keeps: bool) -> None:  # noqa: ANN401
    items: list[Any] = [{"role": "user", "content": "Show the files of this folder."}]
    previous, before = openai.omit, 0
    for turn in range(4):
        with gpt.responses.stream(model="demo", instructions=SYSTEM, input=items, tools=[SHELL], store=keeps,
                                  tool_choice="required", previous_response_id=previous, max_output_tokens=60,
                                  temperature=0) as stream:  # fmt: skip
            pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            reply = stream.get_final_response()
        (call,) = [item for item in reply.output if item.type == "function_call"]
        assert "".join(pieces) == call.arguments
        assert len(pieces) > 1
        if turn:
            assert reply.usage.input_tokens_details.cached_tokens >= LEAST_CACHED * before
        before = reply.usage.total_tokens
        result = {"type": "function_call_output", "call_id": call.call_id, "output": f"a.py\nb{turn}.py"}
        previous, items = (reply.id, [result]) if keeps else (openai.omit, [*items, *reply.output, result])


def test_the_requests_of_codex_are_answered_from_the_cache(http: httpx.Client) -> None:
    before = 0
    for turn, body in enumerate(agents.codex()):
        response = http.post("/v1/responses", json={**body, "stream": False, "max_output_tokens": 8})
        assert response.status_code == 200, response.text
        found = response.json()
        assert "web_search" in found["warnings"][0]
        usage = found["usage"]
        if turn:
            assert usage["input_tokens_details"]["cached_tokens"] >= LEAST_CACHED * before
        before = usage["input_tokens"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_a_reply_ends_when_the_client_goes_away(served: Served, http: httpx.Client, path: str) -> None:
    wait_until(lambda: not served.running)
    body = {"messages": ASK, "max_tokens": 900, "input": "x", "max_output_tokens": 900, "temperature": 2,
            "stream": True}  # fmt: skip
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        next(response.iter_lines())
    wait_until(lambda: not served.running)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.sampled_from(["function", "text", "tool_result", "assistant", "namespace", "input_text", "custom"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "role", "content", "name", "text", "id", "call_id", "input", "tools", "output"])
        | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [at, *(place for key in keys for place in _places(value[key], (*at, key)))]


def _short(value: Any) -> Any:  # noqa: ANN401
    """With fewer tokens."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return value[:20] if isinstance(value, str) else value


def _malformed(draw: st.DataObject) -> tuple[str, Any]:
    """A request of an agent with some of its values replaced."""
    claude = "/v1/messages", agents.claude_code(), "max_tokens"
    codex = "/v1/responses", agents.codex(), "max_output_tokens"
    path, bodies, most = draw.draw(st.sampled_from([claude, codex]))
    body = {**_short(bodies[-1]), most: 1}
    places = _places(body)[1:]
    for _ in range(draw.draw(st.integers(1, 3))):
        *outer, last = draw.draw(st.sampled_from(places))
        inside: Any = body
        try:
            for key in outer:
                inside = inside[key]
            inside[last] = draw.draw(JSON)
        except (KeyError, IndexError, TypeError):
            continue  # it was replaced before
    return path, body


def _is_answered(http: httpx.Client, draw: st.DataObject) -> None:
    path, body = _malformed(draw)
    response = http.post(path, content=json.dumps(body))
    assert response.status_code < 500, (response.text, body)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_malformed_requests_are_answered_with_an_error_of_the_client(http: httpx.Client, draw: st.DataObject) -> None:
    _is_answered(http, draw)


@pytest.mark.slow
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.data())
def test_100_malformed_requests(http: httpx.Client, draw: st.DataObject) -> None:
    _is_answered(http, draw)


@pytest.mark.slow
def test_agents_that_go_on_for_long_read_from_the_cache(claude: Any) -> None:  # noqa: ANN401
    draw = random.Random(1)
    hits = prefix = 0
    for _ in range(2):
        messages: list[Any] = [{"role": "user", "content": f"Look for {draw.random()}."}]
        before = 0
        for turn in range(8):
            must = {"type": "any"} if draw.random() < 0.7 else {"type": "auto"}
            reply = claude.messages.create(model="demo", max_tokens=40, system=SYSTEM, messages=messages, tools=[BASH],
                                           tool_choice=must, **GREEDY)  # fmt: skip
            calls = [block for block in reply.content if block.type == "tool_use"]
            usage = reply.usage
            if turn:
                hits, prefix = hits + min(usage.cache_read_input_tokens, before), prefix + before
            before = usage.input_tokens + usage.cache_read_input_tokens
            results = [{"type": "tool_result", "tool_use_id": one.id, "content": f"line {draw.random()}\n" * 3}
                       for one in calls]  # fmt: skip
            said: Any = results or "Go on."
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": said}]
    assert hits >= LEAST_CACHED * prefix
