"""GET /v1/models and /v1/models/{name}: in the shapes of OpenAI and Anthropic at the same time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedllm.openai.schema import BOOLEAN, STRING, array, integer
from embedllm.server.endpoint import Endpoint, Exchange
from embedllm.server.errors import ApiError

if TYPE_CHECKING:
    from embedllm.openai.schema import Schema
    from embedllm.server.lease import ModelStatus
    from embedllm.types import JSON

_STARTED = int(time.time())
_STARTED_TEXT = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_STARTED))
_MODEL: Schema = {"type": "object", "properties": {"id": STRING, "object": STRING, "created": integer(0),
                                                   "owned_by": STRING, "state": STRING}}  # fmt: skip


async def models(exchange: Exchange, body: Mapping[str, Any]) -> None:
    entries = [entry for status in exchange.context.pool.listed() for entry in _entries(status)]
    ends: list[JSON] = [entries[0]["id"], entries[-1]["id"]]
    await exchange.reply({"object": "list", "data": [*entries], "has_more": False, "first_id": ends[0],
                          "last_id": ends[1]})  # fmt: skip


async def model(exchange: Exchange, body: Mapping[str, Any]) -> None:
    name = exchange.path_params["name"]
    for status in exchange.context.pool.listed():
        for entry in _entries(status):
            if name == entry["id"] or (entry["id"] == status.name and name in status.aliases):
                await exchange.reply(entry)
                return
    raise ApiError(404, f"there is no model {name[:80]!a}; GET /v1/models lists them.", code="model_not_found",
                   param="model")  # fmt: skip


def _entries(status: ModelStatus) -> list[dict[str, JSON]]:
    """A model, whatever its state, and its adapters."""
    whole = _entry(status.name, status)
    whole["aliases"] = list(status.aliases)
    adapters = [{**_entry(f"{status.name}:{name}", status), "parent": status.name} for name in status.adapters]
    return [whole, *adapters]


def _entry(id: str, status: ModelStatus) -> dict[str, JSON]:
    return {
        "id": id,
        "object": "model",
        "created": _STARTED,
        "owned_by": "embedllm",
        "type": "model",  # from here on Anthropic's
        "display_name": id,
        "created_at": _STARTED_TEXT,
        "state": status.state,  # and ours
    }


MODELS = Endpoint(
    path="/v1/models",
    handle=models,
    summary="The models and their LoRA adapters, those that are not loaded among them.",
    response={"type": "object", "properties": {"object": STRING, "data": array(_MODEL), "has_more": BOOLEAN}},
)
MODEL = Endpoint(path="/v1/models/{name:path}", handle=model, summary="One model.", response=_MODEL)
