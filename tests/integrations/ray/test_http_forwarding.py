"""Any ASGI application answers a forwarded request as it answers one of its own."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from embedllm.integrations.ray.http_forwarding import HttpRequest, ResponseStart, answer, prompt_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "messages", "input", "x"]), inner)
    ),
    max_leaves=8,
)


def request(body: bytes = b"{}") -> HttpRequest:
    return HttpRequest(method="POST", path="/v1/x", query=b"a=1", headers=((b"x-y", b"z"),), body=body, prompt="")


def start(status: int) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": [(b"a", b"b"), (b"a", b"c")]}


@given(st.lists(st.binary(max_size=10) | st.none(), max_size=200), st.integers(200, 599))
def test_what_an_application_sends_arrives_in_order(pieces: list[bytes | None], status: int) -> None:
    """None: it does something else in between."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"asked"
        assert (scope["path"], scope["query_string"], scope["headers"]) == ("/v1/x", b"a=1", [(b"x-y", b"z")])
        await send(start(status))
        for piece in pieces:
            if piece is None:
                await asyncio.sleep(0)
            else:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def parts() -> list[ResponseStart | bytes]:
        return [part async for part in answer(application, request(b"asked"))]

    head, *rest = asyncio.run(parts())
    assert head == ResponseStart(status=status, headers=((b"a", b"b"), (b"a", b"c")))
    assert b"".join(part for part in rest if isinstance(part, bytes)) == b"".join(piece or b"" for piece in pieces)


@pytest.mark.parametrize("waits", [True, False])  # for a message, or for room in the queue
def test_an_application_whose_client_goes_is_told_and_ended(waits: bool) -> None:
    seen: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(start(200))
        try:
            if waits:
                await send({"type": "http.response.body", "body": b"first", "more_body": True})
                await asyncio.Event().wait()
            while True:
                await send({"type": "http.response.body", "body": b"more", "more_body": True})
        finally:
            seen.append((await receive())["type"])

    async def begin() -> None:
        parts = answer(application, request())
        assert isinstance(await anext(parts), ResponseStart)
        assert isinstance(await anext(parts), bytes)
        await parts.aclose()

    asyncio.run(asyncio.wait_for(begin(), 10))
    assert seen == ["http.disconnect"]


@pytest.mark.parametrize("begins", [True, False])
def test_what_an_application_raises_is_raised(begins: bool) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if begins:
            await send(start(200))
        raise KeyError("of the application")

    async def parts() -> list[ResponseStart | bytes]:
        return [part async for part in answer(application, request())]

    with pytest.raises(KeyError, match="of the application"):
        asyncio.run(parts())


@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40))
def test_any_body_has_a_prompt_or_none(body: bytes) -> None:
    model, prompt = prompt_text(body)
    assert isinstance(model, str)
    assert isinstance(prompt, str)


def test_equal_beginnings_of_conversations_are_equal_beginnings_of_prompts() -> None:
    turns = [
        {"role": "user", "content": "a" * 50},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    first = prompt_text(json.dumps({"messages": turns[:1], "model": "m", "tools": tools}).encode())[1]
    second = prompt_text(json.dumps({"tools": tools, "seed": 1, "messages": turns, "model": "m"}).encode())[1]
    assert second.startswith(first.removesuffix("]"))
    assert len(first) > 50
