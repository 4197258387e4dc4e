"""What the methods of `embedllm worker` take and give, as JSON schemas: the options of replies are those of the server.

tools/make_worker_clients.py makes the typed clients and openrpc.json of these tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedllm.backends.options import MOST_THREADS
from embedllm.loading.options import LoadOptions
from embedllm.openai.parameters import CHAT_PARAMETERS, LIMITS, MESSAGE, SAMPLING, TOOL
from embedllm.openai.request import own_options, read_chat_body
from embedllm.openai.schema import (
    BOOLEAN,
    NUMBER,
    OBJECT,
    STRING,
    STRINGS,
    Body,
    Schema,
    array,
    integer,
    nullable,
    one_of,
)

if TYPE_CHECKING:
    from embedllm.generation.options import PromptOptions
    from embedllm.text.prompt import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method of the worker."""

    summary: str  # one line
    params: Body
    result: str  # the name of its schema


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParams:
    """What `load` was given."""

    model: str
    options: LoadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyParams:
    """What `generate` or `chat` was given."""

    prompt: Prompt
    options: PromptOptions


_NOT_HERE = ("model", "n", "stream", "stream_options", "priority", "logprobs", "top_logprobs", "parallel_tool_calls",
             "functions", "function_call", "max_completion_tokens", "chat_template_kwargs")  # fmt: skip # of several
# requests and replies at once, in no result, or other names of what there is
_NAME: Schema = {"type": "string", "pattern": "\\S"}
_ID = one_of(STRING, {"type": "integer"})
_ADAPTER = {"adapter": STRING}


def _without(table: Mapping[str, Schema]) -> dict[str, Schema]:
    return {name: schema for name, schema in table.items() if name not in _NOT_HERE}


def _body(name: str, properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Body:
    return Body(properties, required, name, is_closed=True)


def _answer(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


METHODS: dict[str, Method] = {
    "initialize": Method(
        summary="The version of the protocol, the methods and the limits.",
        params=_body("initialize", {"protocol": {"type": "integer"}}),
        result="Initialized",
    ),
    "devices": Method(summary="The devices of this machine.", params=_body("devices", {}), result="Devices"),
    "load": Method(
        summary="Loads a model in place of the one before.",
        params=_body(
            "load",
            {
                "model": STRING,
                "device": one_of(_NAME, array(_NAME, 1)),
                "threads": integer(0, MOST_THREADS),
                "exact": BOOLEAN,
                "parse_special": BOOLEAN,
                "kv": {"type": "string", "enum": ["int8", "int4"]},
                "context": integer(2),
                "draft": STRING,
                "adapters": {"type": "object", "additionalProperties": STRING},
                "cache_dir": STRING,
            },
        ),
        result="Loaded",
    ),
    "generate": Method(
        summary="Continues a text as it stands.",
        params=_body(
            "generate",
            {"prompt": STRING, **_ADAPTER, **_without(LIMITS), **SAMPLING, "special": BOOLEAN},
            ["prompt"],
        ),
        result="Reply",
    ),
    "chat": Method(
        summary="Replies to a conversation.",
        params=_body(
            "chat",
            {"messages": CHAT_PARAMETERS["messages"], "system": STRING, "variables": OBJECT, **_ADAPTER}
            | _without(CHAT_PARAMETERS),
            ["messages"],
        ),
        result="Reply",
    ),
    "cancel": Method(summary="Cancels a request.", params=_body("cancel", {"id": _ID}, ["id"]), result="Cancelled"),
    "unload": Method(summary="Frees the model.", params=_body("unload", {}), result="Empty"),
    "shutdown": Method(summary="Ends the worker.", params=_body("shutdown", {}), result="Empty"),
}

_CALL = _answer(id=STRING, name=STRING, arguments=OBJECT, problem=STRING, text=STRING)
_CALL_DELTA = _answer(index=integer(0), id=STRING, name=STRING, arguments=STRING, problem=STRING)
_DEVICE = _answer(name=STRING, backend=STRING, description=STRING, available=BOOLEAN, reason=STRING, remedy=STRING,
                  memory={"type": "integer"})  # fmt: skip


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


RESULTS: dict[str, Schema] = {
    "Empty": _answer(),
    "Limits": _answer(message_bytes={"type": "integer"}, queued_requests={"type": "integer"}),
    "Initialized": _answer(
        protocol={"type": "integer"},
        methods=STRINGS,
        limits=_named("Limits"),
        versions={"type": "object", "additionalProperties": STRING},
    ),
    "Device": _DEVICE,
    "Devices": _answer(devices=array(_named("Device"))),
    "Loaded": _answer(model=STRING, device=_named("Device"), context=integer(1), can_chat=BOOLEAN),
    "ToolCall": _CALL,
    "CallDelta": _CALL_DELTA,
    "Reply": _answer(
        text=STRING,
        reasoning=STRING,
        tool_calls=array(_named("ToolCall")),
        message=nullable(MESSAGE),
        finish_reason={"type": "string", "enum": ["stop", "length", "context", "cancelled", "timeout"]},
        stopped_by=one_of(STRING, {"type": "integer"}, {"type": "null"}),
        prompt_tokens=integer(0),
        cached_tokens=integer(0),
        tokens=integer(0),
        drafted_tokens=integer(0),
        accepted_tokens=integer(0),
        prefill_s=NUMBER,
        decode_s=NUMBER,
        device=nullable(STRING),
    ),
    "Cancelled": _answer(found=BOOLEAN),
}

# Objects by the names that clients have for them
OBJECTS: dict[str, Schema] = {**RESULTS, "Message": MESSAGE, "Tool": TOOL}
# Of notifications, by their methods
NOTIFICATIONS: dict[str, Schema] = {
    "chunk": {
        "type": "object",
        "properties": {"id": _ID, "text": STRING, "reasoning": STRING, "tool_calls": array(_named("ToolCall")),
                       "call_deltas": array(_named("CallDelta"))},
        "required": ["id", "text"],
    },
    "progress": _answer(id=_ID, text=STRING, elapsed_s=NUMBER),
    "log": _answer(level=STRING, text=STRING),
}  # fmt: skip


def load_params(params: Mapping[str, Any]) -> LoadParams:
    """params: that the schema has checked. Raises ValueError for options that contradict each other."""
    options = {name: value for name, value in params.items() if name != "model"}
    return LoadParams(model=params.get("model", "demo"), options=LoadOptions(**options))


def reply_params(method: str, params: Mapping[str, Any]) -> ReplyParams:
    """params: as above, of `generate` or `chat`; the system text is put before the messages."""
    values = dict(params)
    if method == "generate":
        return ReplyParams(prompt=values.pop("prompt"), options=own_options(values))
    if (system := values.pop("system", None)) is not None:
        values["messages"] = [{"role": "system", "content": system}, *values["messages"]]
    request = read_chat_body(values)
    return ReplyParams(prompt=request.messages, options=request.options)
