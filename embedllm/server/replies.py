"""The replies of a model to one request, for all dialects: built in a thread, given as they are generated."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from embedllm.cancel import Cancel
from embedllm.generation.completion import Completion, collect
from embedllm.generation.request import reject_first_only
from embedllm.generation.run_in_thread import run_in_thread
from embedllm.openai.client import Spelling
from embedllm.server.endpoint import Exchange
from embedllm.server.errors import ApiError
from embedllm.server.lease import Lease

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk
    from embedllm.generation.options import PromptOptions
    from embedllm.generation.request import Request
    from embedllm.model.model import Model
    from embedllm.text.prompt import Prompt

_spellings: WeakKeyDictionary[Model, Spelling] = WeakKeyDictionary()


class Replies:
    """One or several replies under way, each with its index; to be iterated or collected once."""

    def __init__(
        self, exchange: Exchange, lease: Lease, requests: Sequence[Request], *, n: int, one_call: bool
    ) -> None:
        self._exchange, self._lease, self._requests, self._n = exchange, lease, requests, n
        self._one_call = one_call

    async def __aiter__(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        latest: dict[int, Chunk] = {}
        calling: set[int] = set()  # replies with tool calls
        record, tracing = self._exchange.record, self._exchange.context.tracing
        contents: list[list[Chunk]] | None = None  # for traces
        if tracing is not None and tracing.has_content:
            contents = [[] for _ in self._requests]
        cancel = Cancel()
        chunks = self._lease.model.runner.astream_all(self._requests, cancel)
        try:
            async with aclosing(chunks):
                async for index, chunk in chunks:
                    if (before := latest.get(index)) is not None and before.finish_reason is not None:
                        continue  # it was ended here
                    if chunk.finish_reason == "cancelled":  # the client's going away closes this generator instead
                        raise ApiError(503, f"'{self._lease.name}' was closed while it replied.", code="model_closed",
                                       retry_after_s=5)  # fmt: skip
                    latest[index] = chunk = self._ended_by_call(chunk)
                    if record.first_chunk_s is None:
                        record.first_chunk_s = time.monotonic() - self._exchange.began_s
                        record.queued_s = chunk.statistics.queued_s
                    if chunk.tool_calls:
                        calling.add(index)
                    if contents is not None:
                        contents[index].append(chunk)
                    yield index, chunk
                    ended = sum(one.finish_reason is not None for one in latest.values())
                    if ended == len(self._requests):
                        return
        finally:
            cancel.cancel()
            record.model = self._lease.name
            record.add_replies(latest, self._n, calling)
            if contents is not None:
                record.replies = [collect(each) for each in contents if each]
            for chunk in latest.values():
                self._exchange.context.metrics.count_reply(self._lease.name, chunk.statistics)

    async def collect(self) -> list[Completion]:
        """The whole replies."""
        chunks: list[list[Chunk]] = [[] for _ in self._requests]
        async with aclosing(aiter(self)) as stream:
            async for index, chunk in stream:
                chunks[index].append(chunk)
        return [collect(each) for each in chunks]

    def _ended_by_call(self, chunk: Chunk) -> Chunk:
        """The last chunk of a reply that may have one call only, once that is whole."""
        if not self._one_call or not chunk.tool_calls:
            return chunk
        first = chunk.tool_calls[0]
        deltas = tuple(delta for delta in chunk.call_deltas if delta.id == first.id)
        return replace(chunk, tool_calls=(first,), call_deltas=deltas, finish_reason="stop", stopped_by=None)


async def begin(
    exchange: Exchange,
    lease: Lease,
    prompts: Sequence[Prompt],
    options: PromptOptions,
    *,
    n: int = 1,
    one_call: bool = False,
    response_id: str | None = None,
) -> Replies:
    """The replies to each of the prompts, n times each, once they were checked. The server's limits apply.

    one_call: a reply ends with its first tool call. response_id: what clients know them by. Raises what
    Model.request() raises, and ApiError.
    """
    settings = exchange.context.settings
    if (count := len(prompts) * n) > settings.max_choices:
        raise ApiError(400, f"the request asks for {count} replies; {settings.max_choices} is the most.", param="n")
    limited: Any = {**options}
    limited["timeout"] = min(limited.get("timeout") or settings.request_timeout_s, settings.request_timeout_s)
    if lease.adapter is not None:
        limited["adapter"] = lease.adapter

    def build(cancel: Cancel) -> list[Request]:
        return [request for prompt in prompts for request in lease.model.requests(prompt, n, **limited)]

    requests = reject_first_only(await run_in_thread(build))
    if (most := settings.max_tokens) is not None:
        requests = [replace(one, max_tokens=min(one.max_tokens or most, most)) for one in requests]
    exchange.record.response_id = response_id
    if (tracing := exchange.context.tracing) is not None and tracing.has_content:
        exchange.record.prompts = prompts
    return Replies(exchange, lease, requests, n=n, one_call=one_call)


def spelling(model: Model) -> Spelling:
    """The texts of a model's tokens."""
    token_spelling = _spellings.get(model)
    if token_spelling is None:
        token_spelling = _spellings[model] = Spelling(model.tokenizer)
    return token_spelling
