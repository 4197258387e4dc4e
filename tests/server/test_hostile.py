"""Requests that are malformed or mean harm: never a 5xx, never an answer to who is not let in, nothing left behind."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.serving import WAIT_S, Served, client, wait_until

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/tokenize", "/detokenize",
         "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")  # fmt: skip
FIELDS = ("messages", "prompt", "input", "model", "max_tokens", "temperature", "top_p", "n", "stop", "tools", "seed",
          "tool_choice", "response_format", "logit_bias", "stream", "stream_options", "logprobs", "top_logprobs",
          "documents", "query", "top_n", "tokens", "content", "system", "variables", "chat_template_kwargs", "priority",
          "timeout", "speculate", "min_tokens", "bad_words", "dry_breakers", "order", "thinking", "instructions",
          "reasoning", "previous_response_id", "metadata", "encoding_format", "dimensions", "echo", "suffix", "store",
          "min_p", "typical_p", "xtc_probability", "mirostat", "repetition_penalty", "stop_tokens")  # fmt: skip

numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False),
                    st.sampled_from([-1, 0, 2**31, 2**63, 2**64, -(2**70), 10**300, 1e308, -0.0, 0.5]))  # fmt: skip
texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["\ud800", "<|im_end|>", "\0", "../../etc/passwd", "{{7*7}}", "{% for %}"])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer", ""])},
        optional={"content": values, "tool_calls": values, "tool_call_id": values, "name": values},
    ),
    max_size=4,
)
kinds = st.sampled_from(["text", "json_object", "json_schema", "regex", "lark", "function", "auto", "object", ""])
tools = st.lists(
    st.one_of(
        values,
        st.fixed_dictionaries({"type": kinds, "function": st.fixed_dictionaries(
            {"name": texts}, optional={"parameters": st.dictionaries(st.sampled_from(["type", "properties", "enum"]),
                                                                     values), "description": values})}),
    ),
    max_size=3,
)  # fmt: skip
known = st.fixed_dictionaries(
    {},
    optional={
        "messages": messages,
        "tools": tools,
        "response_format": st.one_of(values, st.fixed_dictionaries(
            {"type": kinds}, optional={"json_schema": values, "regex": texts, "lark": texts})),
        "stream": st.booleans(),
        "prompt": st.one_of(texts, st.lists(texts), st.lists(st.integers(0, 70_000), max_size=8)),
        "input": st.one_of(texts, messages, values),
        "stop": st.one_of(texts, st.lists(texts, max_size=3)),
        "temperature": numbers,
        "logprobs": st.one_of(st.booleans(), numbers),
        "tokens": st.lists(st.one_of(st.integers(0, 70_000), numbers), max_size=6),
    },
)  # fmt: skip
bodies = st.builds(lambda odd, plain: {**odd, **plain}, st.dictionaries(st.sampled_from(FIELDS), values, max_size=5),
                   known)  # fmt: skip


def check(served: Served, path: str, content: bytes) -> None:
    """A client's error or an answer, in a form that is JSON, or a stream that ends."""
    with client(served) as http:
        response = http.post(path, content=content)
    assert response.status_code < 500, (path, content, response.text)
    if response.headers["content-type"].startswith("text/event-stream"):
        assert "internal_error" not in response.text, (path, content, response.text)
    elif response.status_code != 200:
        assert response.json()["error"]["message"], response.text


def limited(body: dict[str, Any]) -> bytes:
    """As JSON, with few tokens to generate: what is asked for is not what is tested."""
    short = dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), 2)
    return json.dumps({**body, **short, "timeout": 5, "n": 1 if isinstance(body.get("n"), int) else body.get("n")}
                      ).encode()  # fmt: skip


@given(path=st.sampled_from(PATHS), body=bodies)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_odd_bodies_are_no_fault_of_the_server(served: Served, path: str, body: dict[str, Any]) -> None:
    check(served, path, limited(body))


@pytest.mark.slow
@given(path=st.sampled_from(PATHS), body=bodies)
@settings(max_examples=250, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
def test_many_odd_bodies_are_no_fault_of_the_server(served: Served, path: str, body: dict[str, Any]) -> None:
    check(served, path, limited(body))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b'{"messages": NaN}',
     b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 1}',
     b'{"prompt": "\\ud800", "input": "\\udfff", "content": "\\ud800", "max_tokens": 1}',
     b'{"seed": ' + b"9" * 5000 + b"}", b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}",
     b'{"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "a", '
     b'"parameters": ' + b'{"properties": {"a": ' * 200 + b"{}" + b"}}" * 200 + b"}}], \"max_tokens\": 1}",
     b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "response_format": {"type": "regex", '
     b'"regex": "(a|aa)+(b{1000}){1000}"}}'],
)  # fmt: skip
def test_bodies_that_are_no_requests(served: Served, path: str, content: bytes) -> None:
    check(served, path, content)


@pytest.mark.parametrize(
    "raw",
    [b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"G" * 100_000, b"\x16\x03\x01\x02\x00",
     b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
     b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
     b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
     b"0\r\n\r\n", b"GET /%00%ff HTTP/1.1\r\nhost: localhost\r\n\r\n",
     b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
     b"GET /health HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"],
)  # fmt: skip
def test_connections_that_speak_no_http(served: Served, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        try:
            answer = connection.recv(4096)
        except ConnectionResetError:
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5"), answer
    with client(served) as http:
        assert http.get("/health").status_code == 200


def test_nothing_is_left_behind(served: Served) -> None:
    wait_until(lambda: served.running == 0)
    wait_until(lambda: not served.server.server_state.tasks)
