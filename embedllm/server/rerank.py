"""POST /v1/rerank and /v2/rerank: the requests and replies of Jina and of Cohere, which differ in few fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedllm.generation.run_in_thread import run_in_thread
from embedllm.openai.schema import BOOLEAN, NUMBER, OBJECT, STRING, Body, array, integer, one_of
from embedllm.server.endpoint import Endpoint, Exchange

if TYPE_CHECKING:
    from embedllm.openai.schema import Schema
    from embedllm.types import JSON

_MOST_DOCUMENTS = 10_000
_DOCUMENT: Schema = one_of(STRING, {"type": "object", "required": ["text"], "properties": {"text": STRING}})
_BODY = Body(
    name="RerankRequest",
    required=("query", "documents"),
    properties={
        "model": STRING,
        "query": STRING,
        "documents": {**array(_DOCUMENT, 1), "maxItems": _MOST_DOCUMENTS},
        "top_n": integer(1),
        "return_documents": BOOLEAN,
        "truncate": BOOLEAN,
    },
)


async def rerank(exchange: Exchange, body: Mapping[str, Any]) -> None:
    query: str = body["query"]
    documents = [document if isinstance(document, str) else document["text"] for document in body["documents"]]
    async with exchange.context.pool.use(body.get("model")) as lease:
        truncate: bool = body.get("truncate", False)
        ranked = await lease.model.arerank(query, documents, top=body.get("top_n"), truncate=truncate)
        tokens = await run_in_thread(lambda cancel: lease.model.count_tokens(documents, query=query, truncate=truncate))
        exchange.record.model = lease.name
        exchange.record.add_tokens(tokens)
    shown = {"document"} if body.get("return_documents") else set()
    results: list[JSON] = [
        {"index": one.index, "relevance_score": one.score,
         **{name: {"text": documents[one.index]} for name in shown}}
        for one in ranked
    ]  # fmt: skip
    await exchange.reply({
        "id": f"rerank-{os.urandom(12).hex()}",
        "object": "list",
        "model": lease.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},  # Jina's
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},  # Cohere's
    })  # fmt: skip


_RESULT: Schema = {"type": "object", "properties": {"index": integer(0), "relevance_score": NUMBER, "document": OBJECT}}


def endpoints() -> list[Endpoint]:
    """The rows of the route table."""
    response: Schema = {**OBJECT, "properties": {"id": STRING, "model": STRING, "results": array(_RESULT)}}
    return [Endpoint(path=path, handle=rerank, summary="How well documents fit a query, the best first.", body=_BODY,
                     response=response, tag="Rerank", operation="rerank")
            for path in ("/v1/rerank", "/v2/rerank", "/rerank")]  # fmt: skip
