"""The replies of a model to one Responses request: tools of MCP servers run between them, until it calls none."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from embedllm.generation.completion import collect
from embedllm.server.endpoint import Exchange
from embedllm.server.lease import Lease
from embedllm.server.replies import begin
from embedllm.server.responses.mcp_tools import Outcome, run_mcp
from embedllm.server.responses.reply import ResponseWriter
from embedllm.server.responses.request import ResponsesRequest
from embedllm.tools.calls import result_message

if TYPE_CHECKING:
    from embedllm.generation.options import PromptOptions

MOST_CALLS = 32  # of a response; then the model has to answer


async def tool_rounds(
    exchange: Exchange, lease: Lease, request: ResponsesRequest, writer: ResponseWriter, most_calls: int | None
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of all replies but the last event. most_calls: None: MOST_CALLS.

    A reply that calls a tool of the client, or one that needs an approval, is the last one, once the others have run.
    """
    tools, tracing = request.tools.mcp, exchange.context.tracing
    messages = [*request.messages]
    options: PromptOptions = {**request.options}
    left = min(most_calls or MOST_CALLS, MOST_CALLS) - len(request.approved)
    for approval in request.approved:
        outcome = await run_mcp(tools[approval.name], approval.values, approval.id, tracing)
        assert approval.message is not None  # it was answered
        approval.message["content"] = outcome.text
        for one in writer.ran_approved(approval, tools[approval.name], outcome):
            yield one
    while True:
        if tools and left <= 0:
            options["tool_choice"] = "none"
        replies = await begin(exchange, lease, [messages], options, one_call=request.one_call,
                              response_id=writer.response["id"])  # fmt: skip
        chunks = []
        async with aclosing(aiter(replies)) as stream:
            async for _, chunk in stream:
                if tools:
                    chunks.append(chunk)
                for one in writer.push(chunk):
                    yield one
        is_last, results = True, []
        for block in writer.calls:
            call, tool = block.call, tools.get(block.name)
            assert call is not None
            if tool is None:  # the client's
                results.append(None)
            elif tool.needs_approval and not call.problem:
                results.append(None)
                for one in writer.asks(block, tool):
                    yield one
            else:
                is_last = False
                if call.problem or left <= 0:
                    why = call.problem or "no more calls may run for this request."
                    outcome = Outcome(text=f"error: {why}", is_error=True)
                else:
                    left -= 1
                    outcome = await run_mcp(tool, call.arguments, call.id, tracing)
                results.append(result_message(call, outcome.text))
                for one in writer.ran(block, tool, outcome):
                    yield one
        if is_last or None in results:
            return
        messages += [collect(chunks).message, *[one for one in results if one is not None]]
        if options.get("tool_choice") != "none":
            options["tool_choice"] = "auto"
        writer.next_reply()
