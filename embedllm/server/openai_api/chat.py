"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from embedllm.openai.constraints import CONSTRAINTS, with_response_format
from embedllm.openai.parameters import CHAT_PARAMETERS, UNFOLLOWED, USAGE
from embedllm.openai.replies import ChunkWriter, Head, chat_completion
from embedllm.openai.request import read_chat_body
from embedllm.openai.schema import OBJECT, STRING, Body, array, integer
from embedllm.server.endpoint import Endpoint, Exchange, event
from embedllm.server.openai_api import wire
from embedllm.server.replies import Replies, begin, spelling

_BODY = Body(
    name="ChatCompletionRequest",
    required=("messages",),
    properties={
        **CHAT_PARAMETERS,
        **CONSTRAINTS,
        "modalities": array({"type": "string", "enum": ["text"]}),  # no audio
    },
    unfollowed=UNFOLLOWED,
)


async def chat_completions(exchange: Exchange, body: Mapping[str, Any]) -> None:
    is_stream = body.get("stream", False)
    request = read_chat_body(with_response_format(body))
    one_call = not body.get("parallel_tool_calls", True)
    async with exchange.context.pool.use(body.get("model")) as lease:
        head = Head(model=lease.name, spelled=spelling(lease.model), has_logprobs=request.has_logprobs)
        replies = await begin(exchange, lease, [request.messages], request.options, n=request.n, one_call=one_call,
                              response_id=head.id)  # fmt: skip
        if is_stream:
            writer = ChunkWriter(head, counts_tokens=request.counts_tokens, n=request.n)
            await exchange.stream(_events(writer, replies, has_usage=request.counts_tokens), wire.stream_error)
        else:
            await exchange.reply(wire.completion(chat_completion(head, await replies.collect())))


async def _events(writer: ChunkWriter, replies: Replies, *, has_usage: bool) -> AsyncGenerator[bytes, None]:
    is_first = True
    async for index, chunk in replies:
        if is_first:  # not before: an error has a status of its own until then
            is_first = False
            yield b"".join(event(wire.chunk(one, has_usage=has_usage)) for one in writer.first())
        for one in writer.push(chunk, index):
            yield event(wire.chunk(one, has_usage=has_usage))
    yield wire.DONE


CHAT = Endpoint(
    path="/v1/chat/completions",
    handle=chat_completions,
    summary="The reply to a conversation; with \"stream\": true in pieces.",
    body=_BODY,
    response={
        "type": "object",
        "properties": {"id": STRING, "object": STRING, "created": integer(0), "model": STRING,
                       "choices": array(OBJECT), "usage": USAGE},
    },
    has_events=True,
    operation="chat",
)  # fmt: skip
