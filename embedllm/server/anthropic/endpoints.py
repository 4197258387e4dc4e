"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from embedllm.generation.run_in_thread import run_in_thread
from embedllm.openai.schema import BOOLEAN, OBJECT, STRING, STRINGS, Body, array, integer, number, one_of
from embedllm.server.anthropic.reply import EventWriter, MessageHead, message
from embedllm.server.anthropic.request import messages_request
from embedllm.server.endpoint import Endpoint, Exchange, event
from embedllm.server.errors import ApiError
from embedllm.server.replies import Replies, begin

_PROMPT = {
    "model": STRING,
    "messages": array({"type": "object", "required": ["role", "content"], "properties": {
        "role": {"type": "string", "enum": ["user", "assistant", "system"]}, "content": one_of(STRING, array(OBJECT))}},
        1),
    "system": one_of(STRING, array(OBJECT)),
    "tools": array(OBJECT),
    "tool_choice": OBJECT,
    "thinking": OBJECT,
    "output_config": OBJECT,
}  # fmt: skip
_UNFOLLOWED = ("cache_control", "metadata", "service_tier", "container", "context_management", "inference_geo",
               "diagnostics", "speed", "betas", "mcp_servers", "user_profile_id", "workspace_id")  # fmt: skip
_REQUEST = Body(
    name="MessagesRequest",
    required=("messages", "max_tokens"),
    properties={
        **_PROMPT,
        "max_tokens": integer(1),
        "stop_sequences": STRINGS,
        "stream": BOOLEAN,
        "temperature": number(0, 2),
        "top_p": number(0, 1),
        "top_k": integer(0),
    },
    unfollowed=_UNFOLLOWED,
)
_COUNT = Body(name="CountTokensRequest", required=("messages",), properties=_PROMPT, unfollowed=_UNFOLLOWED)


async def create(exchange: Exchange, body: Mapping[str, Any]) -> None:
    """A message, or the events of one."""
    request = messages_request(body)
    async with exchange.context.pool.use(body.get("model")) as lease:
        tokenizer = lease.model.tokenizer
        head = MessageHead(
            model=lease.name,
            stop_sequences=request.stop_sequences,
            token_text=lambda token: tokenizer.decode([token], special=True),
            warnings=request.warnings,
        )
        replies = await begin(exchange, lease, [request.messages], request.options, one_call=request.one_call,
                              response_id=head.id)  # fmt: skip
        if body.get("stream", False):
            await exchange.stream(_events(EventWriter(head), replies), partial(_stream_error, exchange))
            return
        async with aclosing(aiter(replies)) as stream:
            chunks = [chunk async for _, chunk in stream]
        await exchange.reply(message(head, chunks))


async def _events(writer: EventWriter, replies: Replies) -> AsyncGenerator[bytes, None]:
    async with aclosing(aiter(replies)) as stream:
        async for _, chunk in stream:
            for one in writer.push(chunk):
                yield event(one, str(one["type"]))


def _stream_error(exchange: Exchange, error: ApiError) -> bytes:
    return event(error.body("anthropic", exchange.request_id), "error")


async def count_tokens(exchange: Exchange, body: Mapping[str, Any]) -> None:
    """How many tokens a request has as the model's chat template writes it."""
    request = messages_request(body)
    options = request.options
    async with exchange.context.pool.use(body.get("model")) as lease:
        tokens = await run_in_thread(
            lambda cancel: lease.model.prompt_tokens(
                request.messages,
                tools=None if options.get("tool_choice") == "none" else options.get("tools"),
                variables=options.get("variables"),
                continue_final_message=options.get("continue_final_message", False),
            )
        )
    await exchange.reply({"input_tokens": len(tokens)})


def endpoints() -> list[Endpoint]:
    """The rows of the route table."""
    reply = {"type": "object", "properties": {"id": STRING, "content": array(OBJECT), "usage": OBJECT}}
    count = {"type": "object", "properties": {"input_tokens": integer(0)}}
    return [
        Endpoint(path="/v1/messages", handle=create, summary='A message; with "stream": true its events.',
                 body=_REQUEST, dialect="anthropic", response=reply, has_events=True, tag="Anthropic",
                 operation="chat"),
        Endpoint(path="/v1/messages/count_tokens", handle=count_tokens, summary="The tokens of a request.",
                 body=_COUNT, dialect="anthropic", response=count, tag="Anthropic"),
    ]  # fmt: skip
