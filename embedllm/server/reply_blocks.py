"""A reply as a sequence of blocks, one at a time: reasoning, text, tool calls. What Messages and Responses write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk
    from embedllm.tools.calls import ToolCall

Kind: TypeAlias = Literal["reasoning", "text", "call"]


@dataclass(slots=True, eq=False)
class Block:
    """A part of a reply; it grows while the reply is generated."""

    kind: Kind
    index: int  # in the reply
    id: str = ""  # of a call
    name: str = ""  # of the tool
    pieces: list[str] = field(default_factory=list)
    call: ToolCall | None = None  # the whole call; None: it is not whole, or this is none
    chunks: list[Chunk] = field(default_factory=list)  # that it came from

    @property
    def text(self) -> str:
        """Of a call: the JSON text of its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Piece:
    """What happens to a block."""

    what: Literal["begins", "grows", "ends"]
    block: Block
    text: str = ""


class BlockReader:
    """Cuts one reply, which comes in chunks, into its blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        """Those that have begun."""
        self.reasoning_tokens = 0
        """Up to the last one of the reasoning."""
        self._open: Block | None = None
        self._tokens = 0
        self._spaces = ""  # of a text that has nothing else yet

    def push(self, chunk: Chunk) -> Iterator[Piece]:
        """What a chunk does to blocks; its last chunk ends the last block."""
        self._tokens += chunk.token is not None
        if chunk.reasoning:
            self.reasoning_tokens = self._tokens
            yield from self._grow("reasoning", chunk, chunk.reasoning)
        if chunk.text:
            yield from self._grow_text(chunk)
        whole = {call.id: call for call in chunk.tool_calls}
        for delta in chunk.call_deltas:
            call = whole.get(delta.id)
            if not delta.name:  # it cannot be read: what the model wrote is text then
                yield from self._grow("text", chunk, call.text if call is not None else delta.arguments)
                continue
            yield from self._grow("call", chunk, delta.arguments, id=delta.id, name=delta.name)
        for call in whole.values():
            yield from self._end_call(call, chunk)
        if chunk.finish_reason is not None:
            yield from self._end()

    def _grow_text(self, chunk: Chunk) -> Iterator[Piece]:
        """Blanks between other blocks are no block of their own."""
        text = self._spaces + chunk.text
        if (self._open is not None and self._open.kind == "text") or text.strip():
            self._spaces = ""
            yield from self._grow("text", chunk, text)
        else:
            self._spaces = text

    def _grow(self, kind: Kind, chunk: Chunk, text: str, *, id: str = "", name: str = "") -> Iterator[Piece]:
        if self._open is None or self._open.kind != kind or self._open.id != id:
            yield from self._end()
            self._open = Block(kind, len(self.blocks), id, name)
            self.blocks.append(self._open)
            yield Piece("begins", self._open)
        self._open.chunks.append(chunk)
        if text:
            self._open.pieces.append(text)
            yield Piece("grows", self._open, text)

    def _end_call(self, call: ToolCall, chunk: Chunk) -> Iterator[Piece]:
        """The whole call, whose arguments came in pieces, or not."""
        if not call.name:
            if not any(delta.id == call.id for delta in chunk.call_deltas):
                yield from self._grow("text", chunk, call.text)
            return
        call_block = next((block for block in self.blocks if block.kind == "call" and block.id == call.id), None)
        if call_block is None or not call_block.pieces:
            written = call.text if call.problem else json.dumps(dict(call.arguments), ensure_ascii=False)
            yield from self._grow("call", chunk, written, id=call.id, name=call.name)
        if self._open is not None and self._open.id == call.id:
            self._open.call = call
            yield from self._end()

    def _end(self) -> Iterator[Piece]:
        if self._open is not None:
            block, self._open = self._open, None
            yield Piece("ends", block)
        if self._spaces:
            self._spaces = ""


def check_finish(reason: str | None) -> str:
    """The finish_reason. Raises TimeoutError where the time was over: these dialects have no word for it."""
    if reason == "timeout":
        raise TimeoutError("the reply was not done within the time limit; ask for fewer tokens.")
    assert reason is not None
    return reason
