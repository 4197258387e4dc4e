"""An HTTP request in a message, and an ASGI application that answers it elsewhere, piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

Headers: TypeAlias = "tuple[tuple[bytes, bytes], ...]"
_WAITING = 64  # pieces of a reply that nobody took yet; then the application waits
# What a chat template writes first comes first, so that equal prefixes of prompts are equal prefixes here
_IN_ORDER = ("tools", "system", "instructions", "messages", "input", "prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request on its way to a replica."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    prompt: str
    """What Ray's prefix-aware router compares; it finds it by this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStart:
    """The first message of a reply; the pieces of its body follow."""

    status: int
    headers: Headers


def prompt_text(body: bytes) -> tuple[str, str]:
    """The model that a request's body asks for, and its prompt as one text; both empty where there is none.

    It never fails: what is wrong with a body is said by the server that answers it.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(fields, Mapping):
        return "", ""
    model = fields.get("model")
    parts = [json.dumps(fields[name], ensure_ascii=False) for name in _IN_ORDER if fields.get(name)]
    return (model if isinstance(model, str) else ""), "".join(parts)


async def answer(application: ASGIApp, request: HttpRequest) -> AsyncGenerator[ResponseStart | bytes, None]:
    """The reply of an ASGI application. Closing the generator tells the application that the client has gone.

    Raises what the application raises.
    """
    parts: asyncio.Queue[ResponseStart | bytes | None] = asyncio.Queue(_WAITING)
    is_gone = asyncio.Event()
    unread: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = tuple((name, value) for name, value in message.get("headers", ()))
            await parts.put(ResponseStart(status=message["status"], headers=headers))
        elif message["type"] == "http.response.body" and (body := message.get("body")):
            await parts.put(body)

    async def run() -> None:
        try:
            await application(_scope(request), receive, send)
        finally:
            with suppress(asyncio.QueueFull):  # then somebody reads, and sees the end of the task behind what waits
                parts.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (part := await _next(parts, task)) is not None:
            yield part
        await task
    finally:
        is_gone.set()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _next(
    parts: asyncio.Queue[ResponseStart | bytes | None], task: asyncio.Task[None]
) -> ResponseStart | bytes | None:
    """The next part; bytes that wait already are joined. None at the end."""
    if task.done() and parts.empty():
        return None
    part = await parts.get()
    if not isinstance(part, bytes):
        return part
    joined = [part]
    while not parts.empty():
        more = parts.get_nowait()
        if not isinstance(more, bytes):  # the end: the task is done then
            break
        joined.append(more)
    return b"".join(joined)


def _scope(request: HttpRequest) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers),
        "client": None,
        "server": None,
    }
