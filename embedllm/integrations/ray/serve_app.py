"""build_app(): models on a Ray cluster, answered as `embedllm serve` answers, over any number of replicas."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from embedllm.generation.run_in_thread import run_in_thread
from embedllm.integrations.ray.http_forwarding import HttpRequest, ResponseStart, answer, prompt_text
from embedllm.server.app import create_app
from embedllm.server.endpoint import ToolServers
from embedllm.server.errors import ApiError, Dialect, encode, refusal
from embedllm.server.guard import dialect
from embedllm.server.model_names import ModelNames, ServedModel, UnknownModel
from embedllm.server.model_pool import ModelPool
from embedllm.server.request_record import Tracing
from embedllm.server.settings import ServerSettings

if TYPE_CHECKING:
    from embedllm.types import JSON

_log = logging.getLogger("embedllm")

# The public name, ray.serve.llm.request_router, cannot be imported without vLLM or SGLang (Ray 2.60)
PREFIX_ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router.PrefixCacheAffinityRouter"
"""Ray's own router, which sends a prompt to the replica that has seen the longest prefix of it."""
_ROUTER = {
    "imbalanced_threshold": 8,  # requests more than at the idlest replica, before a prefix no longer counts
    "do_eviction": True,  # the router keeps the texts of prompts: without it for ever
    "eviction_threshold_chars": 8_000_000,
    "eviction_target_chars": 6_000_000,
}


def build_app(
    models: Sequence[ServedModel],
    *,
    replicas: int | None = None,
    autoscaling: Mapping[str, JSON] | None = None,
    settings: ServerSettings | None = None,
    actor_options: Mapping[str, JSON] | None = None,
    max_ongoing_requests: int = 32,
    max_queued_requests: int = 256,
    is_prefix_aware: bool = True,
    mcp: str | os.PathLike[str] | Mapping[str, JSON] | None = None,
    has_traces: bool = False,
) -> serve.Application:
    """A Ray Serve application for `serve.run`: a deployment for each model, and one that takes the requests.

    models: each with a path that every node can open, such as a shared folder's or a hub's.
    replicas: of each model; autoscaling: Ray Serve's autoscaling_config in its place, such as {"min_replicas": 1,
    "max_replicas": 8, "target_ongoing_requests": 16}.
    settings: API keys, limits. host and port are Ray Serve's: serve.start(http_options=...).
    actor_options: Ray's, of a replica, such as {"num_cpus": 4} or {"num_gpus": 1}.
    max_ongoing_requests: of a replica, which batches them. max_queued_requests: of a model, that wait for a replica;
    one more is answered with 429.
    is_prefix_aware: requests with equal prefixes go to the same replica, whose KV cache has them.
    mcp: MCP servers whose tools requests to /v1/responses may have run, as McpServers takes them; each replica opens
    its own connections. has_traces: OpenTelemetry traces, as the OTEL_* variables of the replicas say.
    Raises ValueError for names that are empty or given twice, and when both replicas and autoscaling are given.
    """
    if replicas is not None and autoscaling is not None:
        raise ValueError("replicas and autoscaling are both given; leave one of them out.")
    names = ModelNames(models)  # checks them
    used = settings or ServerSettings()
    deployments = {
        model.name: serve.deployment(
            name=f"model-{model.name}",
            num_replicas=None if autoscaling else replicas or 1,
            autoscaling_config=dict(autoscaling) if autoscaling else None,
            ray_actor_options=dict(actor_options or {}),
            max_ongoing_requests=max_ongoing_requests,
            max_queued_requests=max_queued_requests,
            request_router_config=_router() if is_prefix_aware else RequestRouterConfig(),
        )(ModelReplica).bind(models, model.name, used, mcp=mcp, has_traces=has_traces)
        for model in models
    }
    # it waits for the replicas: a tenth of a core is reserved
    front = serve.deployment(
        max_ongoing_requests=len(models) * max_queued_requests, ray_actor_options={"num_cpus": 0.1}
    )
    return front(Ingress).bind(names, deployments, used.max_body_bytes)


def _router() -> RequestRouterConfig:
    configuration = {"request_router_class": PREFIX_ROUTER, "request_router_kwargs": _ROUTER}
    return RequestRouterConfig.model_validate(configuration)


class ModelReplica:
    """The server of `embedllm serve` in a worker process, without a port of its own."""

    async def __init__(
        self,
        models: Sequence[ServedModel],
        name: str,
        settings: ServerSettings,
        *,
        mcp: str | os.PathLike[str] | Mapping[str, JSON] | None = None,
        has_traces: bool = False,
    ) -> None:
        """name: of the model that this deployment is for; it is loaded before the first request."""
        self._opened = ExitStack()
        tool_servers: ToolServers | None = None
        if mcp is not None:
            from embedllm.integrations.mcp import McpServers

            servers = McpServers(mcp)
            await run_in_thread(lambda _: self._opened.enter_context(servers))
            tool_servers = servers.tools_by_server
        tracing: Tracing | None = None
        if has_traces:
            from embedllm.server.tracing import tracing_from_environment

            tracing = self._opened.enter_context(closing(tracing_from_environment()))
        self._pool = ModelPool([replace(model, pinned=model.name == name) for model in models])
        self._application = create_app(self._pool, settings, tracing=tracing, tool_servers=tool_servers)
        await self._pool.start()

    def __del__(self) -> None:
        """Ray Serve calls it before it ends a replica: spans are sent, and processes of MCP servers ended."""
        self._opened.close()

    async def answer(self, request: HttpRequest) -> AsyncGenerator[ResponseStart | bytes, None]:
        """The reply, piece by piece."""
        async for part in answer(self._application, request):
            yield part


class Ingress:
    """Takes HTTP requests, and sends each to a replica of the model that it names."""

    def __init__(self, names: ModelNames, replicas: Mapping[str, DeploymentHandle], max_body_bytes: int) -> None:
        self._names, self._max_body_bytes = names, max_body_bytes
        self._replicas = {name: handle.options(stream=True) for name, handle in replicas.items()}

    async def __call__(self, request: Request) -> Response:
        """The reply of a replica."""
        form = dialect(request.url.path)
        try:
            name, forwarded = await self._read(request)
            parts = self._ask(name, forwarded)
            start = await anext(parts)
            assert isinstance(start, ResponseStart), "it comes first"
        except (UnknownModel, ApiError) as error:
            return _refused(refusal(error), form)
        except BackPressureError:
            return _refused(ApiError(429, "too many requests wait for this model.", retry_after_s=1), form)
        except (RayError, RayServeException) as error:
            return _refused(_lost(error), form)
        is_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in start.headers
        )
        response = StreamingResponse(_body(parts, form if is_stream else None), status_code=start.status)
        response.raw_headers = list(start.headers)
        return response

    async def _read(self, request: Request) -> tuple[str, HttpRequest]:
        """The name of a model, and the request as it is sent to a replica of it. Raises UnknownModel, ApiError."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._max_body_bytes:
                raise ApiError(413, f"the request has over {self._max_body_bytes:,} bytes; send less.")
        model, prompt = prompt_text(bytes(body))
        served, _ = self._names.find(model)
        return served.name, HttpRequest(
            method=request.method,
            path=request.url.path,
            query=request.url.query.encode(),
            headers=tuple(request.headers.raw),
            body=bytes(body),
            prompt=prompt,
        )

    def _ask(self, name: str, request: HttpRequest) -> AsyncIterator[ResponseStart | bytes]:
        replica = self._replicas[name].answer
        # the router reads positional arguments, and takes none without a prompt
        parts = replica.remote(request) if request.prompt else replica.remote(request=request)
        assert isinstance(parts, DeploymentResponseGenerator), "handles with stream=True give it"
        return parts


async def _body(parts: AsyncIterator[ResponseStart | bytes], form: Dialect | None) -> AsyncGenerator[bytes, None]:
    """The body of a reply. form: of a stream, which ends with an error where its replica is lost."""
    try:
        async for part in parts:
            assert isinstance(part, bytes), "only the first part is no bytes"
            yield part
    except (RayError, RayServeException) as error:
        if form is None:
            raise  # the client sees a body that is cut off
        yield _error_event(_lost(error), form)


def _lost(error: Exception) -> ApiError:
    _log.error("a replica was lost: %s", error)
    return ApiError(
        503, "the replica that computed this reply was lost; ask again.", code="replica_lost", retry_after_s=1
    )


def _refused(error: ApiError, form: Dialect) -> Response:
    body = encode(error.body(form, f"req_{uuid4().hex}"))
    return Response(body, error.status, error.headers, media_type="application/json")


def _error_event(error: ApiError, form: Dialect) -> bytes:
    """The last event of a stream."""
    name = b"event: error\n" if form == "anthropic" else b""
    return name + b"data: " + encode(error.body(form, f"req_{uuid4().hex}")) + b"\n\n"
