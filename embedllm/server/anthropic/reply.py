"""Replies of this library -> a message of Anthropic's, or the events of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedllm.server.reply_blocks import Block, BlockReader, Piece, check_finish

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedllm.generation.chunk import Chunk, Statistics
    from embedllm.types import JSON

_SIGNATURE = "embedllm"  # clients send it back with the thinking, and drop thinking that has none
_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHead:
    """What all events of a message have in common."""

    model: str
    stop_sequences: Sequence[str] = ()
    token_text: Callable[[int], str] = str  # a stop sequence may be one special token
    warnings: Sequence[str] = ()
    id: str = field(default_factory=lambda: f"msg_{os.urandom(12).hex()}")


def message(head: MessageHead, chunks: Sequence[Chunk]) -> dict[str, JSON]:
    """A whole reply. Raises TimeoutError when the time was over."""
    reader = BlockReader()
    for chunk in chunks:
        for _ in reader.push(chunk):
            pass
    last = chunks[-1]
    reason, sequence = _stop(head, last, reader.blocks)
    content: list[JSON] = [_content(block) for block in reader.blocks]
    fields = _message(head, content, _usage(last.statistics, last.statistics.tokens))
    return {**fields, "stop_reason": reason, "stop_sequence": sequence}


class EventWriter:
    """Writes the events of one message."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._reader = BlockReader()
        self._has_begun = False

    def push(self, chunk: Chunk) -> Iterator[dict[str, JSON]]:
        """The events of a step. Raises TimeoutError when the time was over."""
        if not self._has_begun:
            self._has_begun = True
            yield {"type": "message_start", "message": _message(self._head, [], _usage(chunk.statistics, 0))}
            yield {"type": "ping"}
        for piece in self._reader.push(chunk):
            yield from _events(piece)
        if chunk.finish_reason is not None:
            reason, sequence = _stop(self._head, chunk, self._reader.blocks)
            usage = _usage(chunk.statistics, chunk.statistics.tokens)
            delta: JSON = {"stop_reason": reason, "stop_sequence": sequence}
            yield {"type": "message_delta", "delta": delta, "usage": usage}
            yield {"type": "message_stop"}


def _message(head: MessageHead, content: list[JSON], usage: JSON) -> dict[str, JSON]:
    fields: dict[str, JSON] = {"id": head.id, "type": "message", "role": "assistant", "model": head.model,
                               "content": content, "stop_reason": None, "stop_sequence": None,
                               "usage": usage}  # fmt: skip
    return {**fields, "warnings": list(head.warnings)} if head.warnings else fields


def _usage(statistics: Statistics, tokens: int) -> dict[str, JSON]:
    """Anthropic's input_tokens are those that were not cached."""
    return {
        "input_tokens": statistics.prompt_tokens - statistics.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": statistics.cached_tokens,
        "output_tokens": tokens,
    }


def _stop(head: MessageHead, last: Chunk, blocks: Sequence[Block]) -> tuple[str, str | None]:
    reason, stopped_by = check_finish(last.finish_reason), last.stopped_by
    if reason in _REASONS:
        return _REASONS[reason], None
    if any(block.kind == "call" for block in blocks):
        return "tool_use", None
    stopped = head.token_text(stopped_by) if isinstance(stopped_by, int) and head.stop_sequences else stopped_by
    return (
        ("stop_sequence", stopped)
        if stopped in head.stop_sequences and isinstance(stopped, str)
        else ("end_turn", None)
    )


def _content(block: Block) -> dict[str, JSON]:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": _SIGNATURE}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": _arguments(block)}


def _arguments(block: Block) -> JSON:
    """An object; what cannot be read is the text that the model wrote, as in the messages of this library."""
    if block.call is not None and not block.call.problem:
        return dict(block.call.arguments)
    try:
        arguments = json.loads(block.text)
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"text": block.text}


_EMPTY: dict[str, dict[str, JSON]] = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
_DELTAS = {"reasoning": ("thinking_delta", "thinking"), "text": ("text_delta", "text"),
           "call": ("input_json_delta", "partial_json")}  # fmt: skip


def _events(piece: Piece) -> Iterator[dict[str, JSON]]:
    block = piece.block
    if piece.what == "begins":
        call: dict[str, JSON] = {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        content = call if block.kind == "call" else _EMPTY[block.kind]
        yield {"type": "content_block_start", "index": block.index, "content_block": content}
    elif piece.what == "grows":
        kind, name = _DELTAS[block.kind]
        yield {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, name: piece.text}}
    else:
        if block.kind == "reasoning":
            delta: JSON = {"type": "signature_delta", "signature": _SIGNATURE}
            yield {"type": "content_block_delta", "index": block.index, "delta": delta}
        yield {"type": "content_block_stop", "index": block.index}
