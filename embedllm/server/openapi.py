"""GET /openapi.json: the description of all endpoints, made of the route table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from embedllm.files.version import __version__
from embedllm.openai.schema import OBJECT, STRING, Body, nullable
from embedllm.server.endpoint import Endpoint, Exchange

if TYPE_CHECKING:
    from embedllm.types import JSON

_ERRORS = {400: "what was asked for cannot be done", 401: "the API key is missing or wrong", 403: "Host or Origin",
           404: "no such model", 408: "a time limit", 413: "too large", 429: "busy; Retry-After says when"}  # fmt: skip


def endpoints(rows: Sequence[Endpoint], *, needs_key: bool) -> list[Endpoint]:
    """The row of the description of these rows."""
    page = description(rows, needs_key=needs_key)
    return [Endpoint(path="/openapi.json", handle=partial(_answer, page), summary="This description.",
                     tag="Operation")]  # fmt: skip


async def _answer(page: Mapping[str, JSON], exchange: Exchange, body: Mapping[str, Any]) -> None:
    await exchange.reply(page)


def description(rows: Sequence[Endpoint], *, needs_key: bool) -> dict[str, Any]:
    """As OpenAPI 3.1 has it."""
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = re.sub(r":\w+}", "}", row.path)
        paths.setdefault(path, {})[row.method.lower()] = _operation(row, path, rows)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "embedllm serve", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {row.body.name: _request(row.body) for row in rows if row.body is not None},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"},
                                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
        },
    }  # fmt: skip
    if needs_key:
        document["security"] = [{"bearer": []}, {"key": []}]
    return document


def _request(body: Body) -> dict[str, Any]:
    """null is as good as nothing."""
    named = {name: schema if name in body.required else nullable(schema) for name, schema in body.properties.items()}
    return {**body.schema, "properties": named}


def _operation(row: Endpoint, path: str, rows: Sequence[Endpoint]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {**OBJECT, **row.response}}}
    if row.path == "/metrics":
        content = {"text/plain": {"schema": {"type": "string"}}}
    elif row.path == "/":
        content = {"text/html": {"schema": {"type": "string"}}}
    if row.has_events:
        content["text/event-stream"] = {"schema": {**OBJECT, "properties": {"event": STRING, "data": STRING}}}
    answers: dict[str, Any] = {"200": {"description": "done", "content": content}}
    if links := {_name(one): {"operationId": _name(one), "parameters": {"id": "$response.body#/id"}}
                 for one in rows if one.path.startswith(f"{row.path}/{{id}}")}:  # fmt: skip
        answers["200"]["links"] = links  # what can be done with what was made
    for status, words in _ERRORS.items():
        answers[str(status)] = {"description": words, "content": {"application/json": {"schema": OBJECT}}}
    operation: dict[str, Any] = {
        "operationId": _name(row),
        "summary": row.summary,
        "tags": [row.tag],
        "responses": answers,
    }
    if names := re.findall(r"{(\w+)}", path):
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                                   for name in names]  # fmt: skip
    if row.body is not None:
        schema = {"$ref": f"#/components/schemas/{row.body.name}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _name(row: Endpoint) -> str:
    path = re.sub(r":\w+}", "}", row.path)
    return re.sub(r"\W+", "_", f"{row.method.lower()}{path}").strip("_")
