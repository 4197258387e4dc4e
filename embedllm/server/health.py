"""GET /health, /ready and /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embedllm.files.version import __version__
from embedllm.openai.schema import STRING, Schema
from embedllm.server.endpoint import Endpoint, Exchange
from embedllm.server.errors import ApiError
from embedllm.server.metrics import CONTENT_TYPE

_STATUS: Schema = {"type": "object", "properties": {"status": STRING, "version": STRING}}


async def _health(exchange: Exchange, body: Mapping[str, Any]) -> None:
    await exchange.reply({"status": "ok", "version": __version__})


async def _ready(exchange: Exchange, body: Mapping[str, Any]) -> None:
    loading = [status for status in exchange.context.pool.listed() if status.pinned and status.state != "loaded"]
    if loading:
        raise ApiError(503, "a model that shall stay loaded is not loaded yet.", retry_after_s=2)
    await exchange.reply({"status": "ready", "version": __version__})


async def _metrics(exchange: Exchange, body: Mapping[str, Any]) -> None:
    await exchange.reply_bytes(exchange.context.metrics.page(), CONTENT_TYPE)


def endpoints() -> list[Endpoint]:
    """The rows of the route table."""
    return [
        Endpoint(path="/health", handle=_health, summary="The server runs.", response=_STATUS, tag="Operation"),
        Endpoint(path="/ready", handle=_ready, summary="The pinned models are loaded.", response=_STATUS,
                 tag="Operation"),
        Endpoint(path="/metrics", handle=_metrics, summary="Metrics, as Prometheus reads them.", tag="Operation"),
    ]  # fmt: skip
