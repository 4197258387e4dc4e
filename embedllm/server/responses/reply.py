"""Replies of this library -> a response of OpenAI's Responses, and its events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedllm.server.reply_blocks import Block, BlockReader, Piece, check_finish
from embedllm.server.responses.items import Approval, pack_reasoning
from embedllm.server.responses.mcp_tools import McpTool, Outcome, list_item, run_item
from embedllm.server.responses.tools import ClientTool, Tools, call_item

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk, Statistics
    from embedllm.sampling.sampler import Picked

Event = dict[str, Any]  # Any: JSON

_ECHOED = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "temperature", "top_p", "user",
           "safety_identifier", "prompt_cache_key", "service_tier", "max_tool_calls", "top_logprobs")  # fmt: skip
_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """What all events of a response have in common."""

    model: str
    body: Mapping[str, Any]  # the request
    tools: Tools
    spelled: Callable[[int], tuple[str, list[int] | None]]  # a token's text and bytes
    listed: Collection[str] = ()  # MCP servers whose tools the client knows
    has_logprobs: bool = False
    packs_reasoning: bool = False
    warnings: Sequence[str] = ()
    id: str = field(default_factory=lambda: _new_id("resp"))
    created_at: int = field(default_factory=lambda: int(time.time()))


class ResponseWriter:
    """Writes the events of one response; `response` is what there is of it."""

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._reader = BlockReader()
        self._first = 0  # the place of this reply's first item
        self._ids: dict[int, str] = {}  # of items, by their places
        self._items: dict[int, Event] = {}  # those that are done, by their places
        self._ended: list[Chunk] = []  # the last chunks of the replies before
        self._reasoning_tokens = 0  # of the replies before
        self._sequence = -1
        self.response = _response(head)

    def begin(self) -> Iterator[Event]:
        """The first events, once."""
        if self._sequence >= 0:
            return
        yield self._event("response.created", response=dict(self.response))
        yield self._event("response.in_progress", response=dict(self.response))
        tools = self._head.tools.mcp.values()
        for label in dict.fromkeys(one.label for one in tools if one.label not in self._head.listed):
            item = list_item(_new_id("mcpl"), label, [one for one in tools if one.label == label])
            place, at = self._first, {"item_id": item["id"], "output_index": self._first}
            yield self._event("response.output_item.added", output_index=place, item={**item, "tools": []})
            yield self._event("response.mcp_list_tools.in_progress", **at)
            yield self._event("response.mcp_list_tools.completed", **at)
            yield self._done(place, item)
            self._first += 1

    def push(self, chunk: Chunk) -> Iterator[Event]:
        """The events of a step. Raises TimeoutError when the time was over."""
        yield from self.begin()
        is_cut = chunk.finish_reason in ("length", "context")
        for piece in self._reader.push(chunk):
            yield from self._piece(piece, chunk, is_cut=is_cut)
        if chunk.finish_reason is not None:
            check_finish(chunk.finish_reason)
            self._ended.append(chunk)

    @property
    def calls(self) -> list[Block]:
        """Those of the reply that ended, whole."""
        return [block for block in self._reader.blocks if block.call is not None]

    def next_reply(self) -> None:
        """Begins another one of the same response."""
        self._reasoning_tokens += self._reader.reasoning_tokens
        self._first += len(self._reader.blocks)
        self._reader = BlockReader()

    def end(self) -> Iterator[Event]:
        """The last event."""
        is_cut = self._ended[-1].finish_reason in ("length", "context")
        status = "incomplete" if is_cut else "completed"
        details = {"reason": "max_output_tokens"} if is_cut else None
        usage = _usage([chunk.statistics for chunk in self._ended],
                       self._reasoning_tokens + self._reader.reasoning_tokens)  # fmt: skip
        self.response = {**self.response, "status": status, "incomplete_details": details, "usage": usage,
                         "output": self._output(), "completed_at": int(time.time())}  # fmt: skip
        yield self._event(f"response.{status}", response=self.response)

    def fail(self, code: str, message: str) -> Event:
        """The last event of a response that fails."""
        error = {"code": code, "message": message}
        self.response = {**self.response, "status": "failed", "error": error, "output": self._output()}
        return self._event("response.failed", response=self.response)

    # --- tools of MCP servers

    def ran(self, block: Block, tool: McpTool, outcome: Outcome) -> Iterator[Event]:
        """A call of the reply has run."""
        place = self._first + block.index
        name = self._ids[place]
        if tool.needs_approval:  # it could not have run, so nobody was asked
            yield self._event("response.output_item.added", output_index=place,
                              item=run_item(name, tool, "", None))  # fmt: skip
        yield from self._run_ended(place, run_item(name, tool, block.text, outcome))

    def ran_approved(self, approval: Approval, tool: McpTool, outcome: Outcome) -> Iterator[Event]:
        """A call of an earlier response has run."""
        yield from self.begin()
        place, name = self._first, _new_id("mcp")
        self._first += 1
        begun = run_item(name, tool, approval.arguments, None, approval=approval.id)
        yield self._event("response.output_item.added", output_index=place, item=begun)
        yield self._event("response.mcp_call.in_progress", item_id=name, output_index=place)
        yield from self._run_ended(place, run_item(name, tool, approval.arguments, outcome, approval=approval.id))

    def asks(self, block: Block, tool: McpTool) -> Iterator[Event]:
        """A call of the reply waits for an approval."""
        place = self._first + block.index
        item = {"type": "mcp_approval_request", "id": self._ids[place], "server_label": tool.label, "name": tool.name,
                "arguments": block.text}  # fmt: skip
        yield self._event("response.output_item.added", output_index=place, item=item)
        yield self._done(place, item)

    def _run_ended(self, place: int, item: Event) -> Iterator[Event]:
        yield self._event(f"response.mcp_call.{item['status']}", item_id=item["id"], output_index=place)
        yield self._done(place, item)

    def _mcp_piece(self, piece: Piece, tool: McpTool, place: int, *, is_whole: bool) -> Iterator[Event]:
        """A call that is being written; one that needs an approval is told when it is whole."""
        name, block = self._ids[place], piece.block
        at: dict[str, Any] = {"item_id": name, "output_index": place}
        if piece.what == "ends" and not is_whole:
            item = run_item(name, tool, block.text, None, status="incomplete")
            if tool.needs_approval:
                yield self._event("response.output_item.added", output_index=place, item=item)
            yield self._done(place, item)
        elif tool.needs_approval:
            return
        elif piece.what == "begins":
            yield self._event("response.output_item.added", output_index=place, item=run_item(name, tool, "", None))
            yield self._event("response.mcp_call.in_progress", **at)
        elif piece.what == "grows":
            yield self._event("response.mcp_call_arguments.delta", **at, delta=piece.text)
        else:
            yield self._event("response.mcp_call_arguments.done", **at, arguments=block.text)

    # --- items

    def _output(self) -> list[Event]:
        return [item for _, item in sorted(self._items.items())]

    def _done(self, place: int, item: Event) -> Event:
        self._items[place] = item
        return self._event("response.output_item.done", output_index=place, item=item)

    def _event(self, kind: str, **fields: object) -> Event:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **fields}

    def _piece(self, piece: Piece, chunk: Chunk, *, is_cut: bool) -> Iterator[Event]:
        block = piece.block
        tool = self._tool(block)
        place, mcp = self._first + block.index, self._head.tools.mcp.get(block.name)
        prefix = _PREFIXES[block.kind] if mcp is None else "mcpr" if mcp.needs_approval else "mcp"
        name = self._ids.setdefault(place, _new_id(prefix))
        at: dict[str, Any] = {"item_id": name, "output_index": place}
        is_whole = piece.what != "ends" or not is_cut or block.call is not None or block.chunks[-1] is not chunk
        if mcp is not None and block.kind == "call":
            yield from self._mcp_piece(piece, mcp, place, is_whole=is_whole)
        elif piece.what == "begins":
            item = self._item(block, tool, "in_progress")
            yield self._event("response.output_item.added", output_index=place, item=item)
            if block.kind != "call":
                yield self._event("response.content_part.added", **at, content_index=0, part=self._part(block, ""))
        elif piece.what == "grows":
            if block.kind == "text":
                logprobs = self._logprobs([chunk])
                yield self._event("response.output_text.delta", **at, content_index=0, delta=piece.text,
                                  logprobs=logprobs)  # fmt: skip
            elif block.kind == "reasoning":
                yield self._event("response.reasoning_text.delta", **at, content_index=0, delta=piece.text)
            elif tool.kind == "function":
                yield self._event("response.function_call_arguments.delta", **at, delta=piece.text)
        else:
            item = self._item(block, tool, "completed" if is_whole else "incomplete")
            yield from self._ending(block, tool, item, at)
            yield self._done(place, item)

    def _ending(self, block: Block, tool: ClientTool, item: Event, at: Mapping[str, Any]) -> Iterator[Event]:
        """What comes before an item is done."""
        if block.kind == "call":
            if tool.kind == "function":
                yield self._event("response.function_call_arguments.done", **at, name=tool.name,
                                  arguments=item["arguments"])  # fmt: skip
            elif tool.kind == "custom":
                yield self._event("response.custom_tool_call_input.delta", **at, delta=item["input"])
                yield self._event("response.custom_tool_call_input.done", **at, input=item["input"])
            return
        if block.kind == "text":
            logprobs = self._logprobs(block.chunks)
            yield self._event("response.output_text.done", **at, content_index=0, text=block.text, logprobs=logprobs)
        else:
            yield self._event("response.reasoning_text.done", **at, content_index=0, text=block.text)
        yield self._event("response.content_part.done", **at, content_index=0, part=self._part(block, block.text))

    def _tool(self, block: Block) -> ClientTool:
        """What is called; a tool that there is not is a function, too: the client says so to the model."""
        return self._head.tools.clients.get(block.name) or ClientTool(kind="function", name=block.name)

    def _item(self, block: Block, tool: ClientTool, status: str) -> Event:
        name, is_done = self._ids[self._first + block.index], status != "in_progress"
        if block.kind == "call":
            return call_item(tool, item_id=name, call_id=block.id, arguments=block.text if is_done else "",
                             status=status)  # fmt: skip
        content = [self._part(block, block.text)] if is_done else []
        if block.kind == "text":
            return {"type": "message", "id": name, "role": "assistant", "status": status, "content": content}
        item: Event = {"type": "reasoning", "id": name, "summary": [], "content": content, "status": status}
        packed = pack_reasoning(block.text) if is_done and self._head.packs_reasoning else None
        return {**item, "encrypted_content": packed}

    def _part(self, block: Block, text: str) -> Event:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [],
                "logprobs": self._logprobs(block.chunks) if text else []}  # fmt: skip

    def _logprobs(self, chunks: Sequence[Chunk]) -> list[Event]:
        """Of the tokens of a text; those that end the reply are none."""
        if not self._head.has_logprobs:
            return []
        steps = [(one.token, one.logprob, one) for one in chunks]
        return [
            {**self._token(token, logprob),
             "top_logprobs": [self._picked(top) for top in one.top_logprobs]}
            for token, logprob, one in steps
            if token is not None and logprob is not None and not (one.finish_reason and isinstance(one.stopped_by, int))
        ]  # fmt: skip

    def _picked(self, top: Picked) -> Event:
        return self._token(top.token, top.logprob)

    def _token(self, token: int, logprob: float) -> Event:
        text, spelled = self._head.spelled(token)
        return {"token": text, "bytes": spelled or [], "logprob": logprob}


def _new_id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(16).hex()}"


def _usage(statistics: Sequence[Statistics], reasoning: int) -> Event:
    """Of all replies of a response."""
    prompt_tokens, generated = sum(one.prompt_tokens for one in statistics), sum(one.tokens for one in statistics)
    cached = sum(one.cached_tokens for one in statistics)
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt_tokens + generated,
    }


def _response(head: ResponseHead) -> Event:
    """A response that has just begun."""
    body = head.body
    reasoning = body.get("reasoning") or {}
    response: Event = {
        "id": head.id,
        "object": "response",
        "created_at": head.created_at,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": head.model,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "store": body.get("store", True),
        "text": {"format": {"type": "text"}, **(body.get("text") or {})},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "truncation": "disabled",
        "usage": None,
        **{name: body.get(name) for name in _ECHOED},
    }
    response["metadata"] = body.get("metadata") or {}
    return {**response, "warnings": list(head.warnings)} if head.warnings else response
