"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedllm.generation.run_in_thread import run_in_thread
from embedllm.openai.parameters import UNFOLLOWED
from embedllm.openai.schema import BOOLEAN, NUMBER, OBJECT, STRING, Body, array, integer, one_of
from embedllm.server.endpoint import Endpoint, Exchange
from embedllm.server.errors import ApiError

if TYPE_CHECKING:
    from embedllm.openai.schema import Schema
    from embedllm.types import JSON

MOST_TEXTS = 2048  # OpenAI's
_TOKENS: Schema = array(integer(0), 1)
_BODY = Body(
    name="EmbeddingRequest",
    required=("input",),
    properties={
        "model": STRING,
        "input": one_of(STRING, {**array(STRING, 1), "maxItems": MOST_TEXTS}, _TOKENS, array(_TOKENS, 1)),
        "encoding_format": {"type": "string", "enum": ["float", "base64"]},
        "dimensions": integer(1),
        "input_type": STRING,  # "query", "document": Cohere's and Voyage's name
        "truncate": BOOLEAN,
    },
    unfollowed=UNFOLLOWED,
)


async def embeddings(exchange: Exchange, body: Mapping[str, Any]) -> None:
    inputs = body["input"]
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts[0], str):
        raise ApiError(400, "input has token ids; send text, which the model's own tokenizer reads (LangChain: "
                      "check_embedding_ctx_length=False).", param="input")  # fmt: skip
    async with exchange.context.pool.use(body.get("model")) as lease:
        kind, truncate = body.get("input_type"), body.get("truncate", False)
        vectors = await lease.model.aembed(texts, kind=kind, dimensions=body.get("dimensions"), truncate=truncate)
        tokens = await run_in_thread(lambda cancel: lease.model.count_tokens(texts, kind=kind, truncate=truncate))
        exchange.record.model = lease.name
        exchange.record.add_tokens(tokens)
    is_base64 = body.get("encoding_format") == "base64"
    data: list[JSON] = [
        {"object": "embedding", "index": place,
         "embedding": base64.b64encode(row.astype("<f4").tobytes()).decode() if is_base64 else row.tolist()}
        for place, row in enumerate(vectors)
    ]  # fmt: skip
    await exchange.reply({"object": "list", "model": lease.name, "data": data,
                          "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})  # fmt: skip


_EMBEDDING: Schema = {"type": "object", "properties": {"object": STRING, "index": integer(0),
                                                       "embedding": one_of(array(NUMBER), STRING)}}  # fmt: skip
EMBEDDINGS = Endpoint(
    path="/v1/embeddings",
    handle=embeddings,
    summary="The vectors of texts by an embedding model.",
    body=_BODY,
    response={**OBJECT, "properties": {"object": STRING, "model": STRING, "data": array(_EMBEDDING)}},
    operation="embeddings",
)
