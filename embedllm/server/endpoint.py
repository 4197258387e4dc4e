"""An endpoint: a row of the route table, and the exchange of one request and its response."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from embedllm.generation.run_in_thread import run_in_thread
from embedllm.openai.schema import Body
from embedllm.server.errors import ApiError, Dialect, encode, refusal
from embedllm.server.metrics import Metrics
from embedllm.server.model_pool import ModelPool
from embedllm.server.request_record import RequestRecord, RequestTrace, Tracing
from embedllm.server.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from embedllm.text.function_schema import FunctionTool
    from embedllm.types import JSON

ToolServers = Mapping[str, Mapping[str, "FunctionTool"]]  # by labels of MCP servers, and names of their tools
_log = logging.getLogger("embedllm.server")
_COMMENT = b": keep-alive\n\n"
_LARGE = 1 << 16  # bytes of a body that is parsed in a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all requests share."""

    pool: ModelPool
    settings: ServerSettings
    metrics: Metrics
    tracing: Tracing | None = None
    tool_servers: ToolServers = field(default_factory=dict)  # MCP servers whose tools requests may use


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path and what answers it."""

    path: str  # Starlette's form: /v1/models/{name}
    handle: Callable[[Exchange, Mapping[str, Any]], Awaitable[None]]  # Any: JSON that the schema has checked
    summary: str  # one line, for the OpenAPI description
    body: Body | None = None  # None: a GET
    dialect: Dialect = "openai"
    response: Mapping[str, JSON] = field(default_factory=dict)  # JSON schema, for the OpenAPI description
    has_events: bool = False  # with "stream": true
    tag: str = "OpenAI"
    deletes: bool = False
    operation: str | None = None  # of a model, in the words of OpenTelemetry's conventions; None: it has no trace

    @property
    def method(self) -> str:
        return "DELETE" if self.deletes else "GET" if self.body is None else "POST"


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Exchange:
    """One request and its response. What answers it is cancelled when the client goes away."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, context: Context, dialect: Dialect) -> None:
        self.context = context
        self.dialect: Dialect = dialect
        self.headers = Headers(scope=scope)
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.request_id: str = scope.get("embedllm.request_id", "")
        self.record = RequestRecord()
        self.began_s = time.monotonic()
        self.is_started = False
        self._is_over = False
        self._is_gone = False
        self._receive, self._send = receive, send
        self._sent_s = self.began_s

    # --- the request

    async def read(self, body: Body) -> Mapping[str, Any]:
        """The body, parsed and checked. Raises ApiError for one that is too long, too slow or against the schema."""
        limit = self.context.settings.max_body_bytes
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.context.settings.body_timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise too_large(limit)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise ApiError(408, "the body of the request was not received in time.", code="timeout") from None
        raw = b"".join(parts)
        if size > _LARGE:
            return await run_in_thread(lambda cancel: body.parse(raw))
        return body.parse(raw)

    @asynccontextmanager
    async def ended_when_gone(self) -> AsyncIterator[None]:
        """Within the block, once the body was read: raises ClientGone as soon as the client goes away."""
        task = asyncio.current_task()
        assert task is not None
        watching = asyncio.create_task(self._watch(task))
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_gone or task.uncancel() > 0:  # the server is shutting down
                raise
            raise ClientGone from None
        finally:
            watching.cancel()

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_over:
            self._is_gone = True
            task.cancel()

    # --- the response

    async def reply(
        self, body: Mapping[str, JSON], *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answers with JSON."""
        await self.reply_bytes(encode(body), "application/json", status=status, headers=headers)

    async def reply_bytes(
        self, body: bytes, kind: str, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answers with a whole body of a content type."""
        self._is_over = True
        self.is_started = True
        self.record.status = status
        all_headers = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in all_headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, events: AsyncGenerator[bytes, None], write_error: Callable[[ApiError], bytes]) -> None:
        """Answers with server-sent events, as they come.

        write_error: the event, or the last events, that tell of an error after the first one. Before the first event an
        error is raised, so that it has a status of its own.
        """
        idle = asyncio.create_task(self._comment_when_idle())
        try:
            async with aclosing(events):
                async for event in events:
                    await self._write_event(event)
        except Exception as error:
            if not self.is_started or self._is_over:
                raise
            idle.cancel()
            self.record.error = refused = refusal(error)
            await self._write_event(write_error(refused))
        except asyncio.CancelledError:
            idle.cancel()
            if self.is_started and not self._is_gone:
                self.record.error = ending = ApiError(503, "the server is shutting down; the reply is incomplete.",
                                                      code="server_ends")  # fmt: skip
                await self._write_event(write_error(ending))
                await self._end_events()
            raise
        finally:
            idle.cancel()
        await self._end_events()

    async def fail(self, error: ApiError) -> None:
        """Answers with an error, where nothing was sent yet."""
        if not self.is_started:
            self.record.error = error
            body = error.body(self.dialect, self.request_id)
            await self.reply(body, status=error.status, headers=error.headers)

    async def _end_events(self) -> None:
        if not self.is_started:
            await self._write_event(b"")
        self._is_over = True
        await self._send({"type": "http.response.body", "body": b""})

    async def _write_event(self, event: bytes) -> None:
        if not self.is_started:
            self.is_started = True
            self.record.status = 200
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
                       (b"x-accel-buffering", b"no")]  # fmt: skip
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._sent_s = time.monotonic()
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def _comment_when_idle(self) -> None:
        """Tells proxies and clients that a reply is still under way: a long prompt, or a queue."""
        pause_s = self.context.settings.keep_alive_s
        while True:
            await asyncio.sleep(max(0.0, self._sent_s + pause_s - time.monotonic()))
            if time.monotonic() - self._sent_s >= pause_s:
                await self._write_event(_COMMENT)


@dataclass(frozen=True, slots=True)
class EndpointApp:
    """The ASGI application of an endpoint."""

    endpoint: Endpoint
    context: Context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, tracing = self.endpoint, self.context.tracing
        exchange = Exchange(scope, receive, send, context=self.context, dialect=endpoint.dialect)
        if tracing is None or endpoint.operation is None:
            await self._answer(exchange)
            return
        with tracing.request(endpoint.operation, endpoint.method, endpoint.path, exchange.headers,
                             exchange.record) as trace:  # fmt: skip
            await self._answer(exchange, trace)

    async def _answer(self, exchange: Exchange, trace: RequestTrace | None = None) -> None:
        endpoint = self.endpoint
        try:
            if endpoint.body is None:
                await endpoint.handle(exchange, {})
                return
            body = await exchange.read(endpoint.body)
            if trace is not None:
                trace.begin(body)
            async with exchange.ended_when_gone():
                await endpoint.handle(exchange, body)
        except ClientGone:
            exchange.record.is_gone = True
            self.context.metrics.cancelled.labels(endpoint.path).inc()
        except asyncio.CancelledError:  # of uvicorn, once replies under way had their time
            await exchange.fail(ApiError(503, "the server is shutting down.", code="server_ends", retry_after_s=5))
        except Exception as error:  # noqa: BLE001  # answered, and logged where it is no client's fault; others go on
            await exchange.fail(refusal(error))


def too_large(limit: int) -> ApiError:
    """The answer to a body of too many bytes."""
    return ApiError(413, f"the body is too large; the limit is {limit} bytes.", code="request_too_large")


def event(data: Mapping[str, JSON], name: str | None = None) -> bytes:
    """A server-sent event. name: of Anthropic's and of Responses' events."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
