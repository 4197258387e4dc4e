"""create_app(): the ASGI application, made of the rows of the route table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from embedllm.server import health, openai_api, openapi, page, rerank, tokens
from embedllm.server.anthropic.endpoints import endpoints as anthropic_endpoints
from embedllm.server.endpoint import Context, Endpoint, EndpointApp, ToolServers
from embedllm.server.errors import ApiError, encode
from embedllm.server.guard import Guard, dialect
from embedllm.server.metrics import Metrics
from embedllm.server.model_pool import ModelPool
from embedllm.server.request_record import Tracing
from embedllm.server.responses.endpoints import Responses
from embedllm.server.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send


def create_app(
    pool: ModelPool,
    settings: ServerSettings | None = None,
    *,
    tracing: Tracing | None = None,
    tool_servers: ToolServers | None = None,
) -> Starlette:
    """The application, for uvicorn or another ASGI server; it starts the pool, and closes it at its end.

    settings: None: the defaults. Time limits of headers and connections are the ASGI server's (run.py).
    tracing: where requests leave a trace, such as an OpenTelemetryTracing; whoever made it closes it.
    tool_servers: MCP servers that are open, by their labels; Responses may ask for their tools to be run.
    """
    context = Context(pool=pool, settings=settings or ServerSettings(), metrics=Metrics(pool), tracing=tracing,
                      tool_servers=tool_servers or {})  # fmt: skip
    rows = endpoints(context)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        for row in rows:
            _ = row.body and row.body.validator  # made before the first request
        async with pool:
            yield

    return Starlette(
        routes=_routes(rows, context),
        middleware=[Middleware(Guard, settings=context.settings, metrics=context.metrics)],
        exception_handlers={HTTPException: _no_route},
        lifespan=lifespan,
    )


def endpoints(context: Context) -> list[Endpoint]:
    """The route table."""
    dialects = [*openai_api.endpoints(), *Responses().endpoints(), *anthropic_endpoints()]
    rows = [*dialects, *rerank.endpoints(), *tokens.endpoints(), *health.endpoints()]
    if context.settings.has_page:
        rows += page.endpoints()
    return [*rows, *openapi.endpoints(rows, needs_key=bool(context.settings.api_keys))]


def _routes(rows: Sequence[Endpoint], context: Context) -> list[Route]:
    """One a path, so that the answer to another method names all that it takes."""
    by_path: dict[str, dict[str, EndpointApp]] = {}
    for row in rows:
        by_path.setdefault(row.path, {})[row.method] = EndpointApp(row, context)
    return [Route(path, _MethodApp(apps), methods=list(apps)) for path, apps in by_path.items()]


@dataclass(frozen=True, slots=True)
class _MethodApp:
    """The ASGI application of a path; Starlette has checked the method."""

    apps: Mapping[str, EndpointApp]  # by method; GET is HEAD's, too

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope["endpoint"] = self.apps[method]  # which the guard counts
        await self.apps[method](scope, receive, send)


async def _no_route(request: Request, error: Exception) -> Response:
    """For a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    path = ascii(request.url.path[:120])
    message = f"there is no {path}; GET /openapi.json lists the paths." if error.status_code == 404 else (
        f"{request.method} is not what {path} takes."
    )  # fmt: skip
    refused = ApiError(error.status_code, message, code="unknown_url" if error.status_code == 404 else None)
    body = encode(refused.body(dialect(request.url.path), request.scope.get("embedllm.request_id", "")))
    return Response(body, error.status_code, dict(error.headers or {}), media_type="application/json")
