"""POST /v1/responses, and GET and DELETE /v1/responses/{id}."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from embedllm.openai.schema import BOOLEAN, OBJECT, STRING, STRINGS, Body, array, integer, number, one_of
from embedllm.server.endpoint import Endpoint, Exchange, event
from embedllm.server.errors import ApiError
from embedllm.server.lease import Lease
from embedllm.server.replies import spelling
from embedllm.server.responses.reply import ResponseHead, ResponseWriter
from embedllm.server.responses.request import ResponsesRequest, responses_request
from embedllm.server.responses.store import ResponseStore
from embedllm.server.responses.tool_rounds import tool_rounds

_REQUEST = Body(
    name="ResponsesRequest",
    properties={
        "model": STRING,
        "input": one_of(STRING, array(OBJECT)),
        "instructions": STRING,
        "previous_response_id": STRING,
        "store": BOOLEAN,
        "stream": BOOLEAN,
        "tools": array(OBJECT),
        "tool_choice": one_of(STRING, OBJECT),
        "parallel_tool_calls": BOOLEAN,
        "max_output_tokens": integer(1),
        "temperature": number(0, 2),
        "top_p": number(0, 1),
        "seed": integer(-(2**63), 2**64 - 1),
        "top_logprobs": integer(0, 20),
        "text": OBJECT,
        "reasoning": OBJECT,
        "include": STRINGS,
        "truncation": {"type": "string", "enum": ["auto", "disabled"]},
        "background": BOOLEAN,
        "conversation": one_of(STRING, OBJECT),  # refused by name
        "prompt": OBJECT,
        "metadata": OBJECT,  # given back, as the following
        "user": STRING,
        "safety_identifier": STRING,
        "prompt_cache_key": STRING,
        "service_tier": STRING,
        "max_tool_calls": integer(1),
    },
    unfollowed=("stream_options", "prompt_cache_retention", "prompt_cache_options", "context_management",
                "client_metadata", "moderation", "access_programs", "background_options", "image"),
)  # fmt: skip
_FAILURES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class Responses:
    """The endpoints, and the state that they share."""

    def __init__(self, store: ResponseStore | None = None) -> None:
        self._store = store or ResponseStore()

    async def create(self, exchange: Exchange, body: Mapping[str, Any]) -> None:
        """A response, or the events of one."""
        previous: str = body.get("previous_response_id", "")
        earlier = self._store.conversation(previous) if previous else []
        if earlier is None:
            raise ApiError(400, f"there is no response '{previous[:80]}', or it was dropped; send the whole input.",
                           code="previous_response_not_found", param="previous_response_id")  # fmt: skip
        request = responses_request(body, earlier, self._store.item, exchange.context.tool_servers)
        async with exchange.context.pool.use(body.get("model")) as lease:
            head = ResponseHead(
                model=lease.name,
                body=body,
                tools=request.tools,
                spelled=spelling(lease.model),
                listed=request.listed,
                has_logprobs=request.has_logprobs,
                packs_reasoning=request.packs_reasoning,
                warnings=request.warnings,
            )
            writer = ResponseWriter(head)
            events = self._events(exchange, lease, request, writer, body)
            if body.get("stream", False):
                await exchange.stream(_written(events), partial(_stream_error, writer))
                return
            async with aclosing(events):
                async for _ in events:
                    pass
        await exchange.reply(writer.response)

    async def retrieve(self, exchange: Exchange, body: Mapping[str, Any]) -> None:
        """A response that was stored."""
        entry = self._store.get(exchange.path_params["id"])
        if entry is None:
            raise _missing(exchange)
        await exchange.reply(entry.response)

    async def delete(self, exchange: Exchange, body: Mapping[str, Any]) -> None:
        """Forgets a response that was stored."""
        name = exchange.path_params["id"]
        if not self._store.delete(name):
            raise _missing(exchange)
        await exchange.reply({"id": name, "object": "response", "deleted": True})

    async def input_items(self, exchange: Exchange, body: Mapping[str, Any]) -> None:
        """The items of the conversation that a stored response answers."""
        entry = self._store.get(exchange.path_params["id"])
        if entry is None:
            raise _missing(exchange)
        earlier = self._store.conversation(entry.previous) if entry.previous is not None else []
        items = [*(earlier or []), *entry.input]
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
        await exchange.reply({"object": "list", "data": items, "has_more": False, **ends})

    async def _events(
        self,
        exchange: Exchange,
        lease: Lease,
        request: ResponsesRequest,
        writer: ResponseWriter,
        body: Mapping[str, Any],
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(tool_rounds(exchange, lease, request, writer, body.get("max_tool_calls"))) as events:
            async for one in events:
                yield one
        for one in writer.end():
            self._keep(writer.response, body)  # before the client can ask for it
            yield one

    def _keep(self, response: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        if body.get("store", True) and self._store.get(response["id"]) is None:
            self._store.put(response, _items(body.get("input", [])), body.get("previous_response_id"))

    def endpoints(self) -> list[Endpoint]:
        """The rows of the route table."""
        reply = {"type": "object", "properties": {"id": STRING, "status": STRING, "output": array(OBJECT),
                                                  "usage": OBJECT}}  # fmt: skip
        gone = {"type": "object", "properties": {"id": STRING, "deleted": BOOLEAN}}
        path = "/v1/responses/{id}"
        return [
            Endpoint(path="/v1/responses", handle=self.create, summary='A response; with "stream": true its events.',
                     body=_REQUEST, response=reply, has_events=True, operation="chat"),
            Endpoint(path=path, handle=self.retrieve, summary="A stored response.", response=reply),
            Endpoint(path=path, handle=self.delete, summary="Forget a stored response.", response=gone,
                     deletes=True),
            Endpoint(path=f"{path}/input_items", handle=self.input_items, summary="What a stored response answers.",
                     response={"type": "object", "properties": {"data": array(OBJECT)}}),
        ]  # fmt: skip


def _items(value: str | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The items of a request, each with an id."""
    if isinstance(value, str):
        value = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    return [item if item.get("id") else {**item, "id": f"item_{os.urandom(12).hex()}"} for item in value]


def _missing(exchange: Exchange) -> ApiError:
    name = ascii(exchange.path_params["id"][:80])
    return ApiError(404, f"there is no response {name}, or it was dropped.", code="response_not_found")


async def _written(events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for one in events:
            yield event(one, str(one["type"]))


def _stream_error(writer: ResponseWriter, error: ApiError) -> bytes:
    code = error.code if error.code == "context_length_exceeded" else _FAILURES.get(error.status, "server_error")
    failed = writer.fail(code, error.message)
    return event(failed, "response.failed")
