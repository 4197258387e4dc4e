"""A reply in messages whose headers say whom they are for, which come in pieces: Harmony's channels, and Muse's.

Harmony: the channel "analysis" is reasoning, a message to a function is a call. Muse: a message to "self" is reasoning.
Source: github.com/openai/harmony docs/format.md. The reply begins after "<|start|>assistant" in the prompt.
"""

from __future__ import annotations

import re
from dataclasses import replace

from embedllm.tools.body_parsers import read_arguments
from embedllm.tools.calls import CallDelta, Parameters, Parts, ToolCall, new_id
from embedllm.tools.deltas import ArgumentStream, as_delta
from embedllm.tools.formats import CallShape, ToolFormat
from embedllm.tools.notations.pairs import read_pairs
from embedllm.tools.notations.values import is_quoted
from embedllm.tools.stream_parser import begun, broken

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|eom|>", "<|eot|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_PEOPLE = ("user", "assistant", "all", "self")
_BODY = CallShape("$arguments", "named", "", "", re.compile(r"(?P<name>)\s*"))


class ChannelReader:
    """Parts a reply of such a model. A message to a person or to the model itself is no call."""

    def __init__(self, written: ToolFormat, parameters: Parameters) -> None:
        self._format = written
        self._parameters = parameters
        self._shape = _body_shape(written)
        self._buffer = ""
        self._recipient: str | None = None
        self._is_reasoning = False
        self._is_inside = False  # of a message, otherwise of what stands before it
        self._message_kinds: set[bool] = set()  # the kinds that had a message: whether it was reasoning
        self._count = 0  # of calls so far
        self._stream: ArgumentStream | None = None

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece."""
        self._buffer += piece
        parts = Parts()
        while (moved := self._step(finish_reason)) is not None:
            parts = Parts(
                parts.text + moved.text,
                parts.reasoning + moved.reasoning,
                parts.tool_calls + moved.tool_calls,
                parts.call_deltas + moved.call_deltas,
            )
        return parts

    def _step(self, finish_reason: str | None) -> Parts | None:
        if self._is_inside:
            return self._message(finish_reason)
        header, mark, rest = self._buffer.partition(_MESSAGE)
        if not mark:
            if finish_reason is None or not self._buffer:
                return None
            self._buffer = ""
            return Parts() if "<|" in header else Parts(header)  # a model that left the format
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        self._buffer, self._is_inside = rest, True
        recipient_name = recipient[1] if recipient else "user"
        self._recipient = None if recipient_name in _PEOPLE else recipient_name.removeprefix("functions.")
        self._is_reasoning = (channel is not None and channel[1] == "analysis") or recipient_name == "self"
        is_further = self._recipient is None and self._is_reasoning in self._message_kinds
        if self._recipient is not None:
            self._stream = ArgumentStream(self._format, self._parameters, self._count)
        return self._part("\n" if is_further else "")

    def _message(self, finish_reason: str | None) -> Parts | None:
        first_end = min(((at, end) for end in _ENDS if (at := self._find(end)) >= 0), default=None)
        if first_end is None and finish_reason is None:
            if self._recipient is not None:
                return self._growing(self._recipient)
            certain = len(self._buffer) - begun(self._buffer, _ENDS)
            text, self._buffer = self._buffer[:certain], self._buffer[certain:]
            return self._part(text) if text else None
        at, end = first_end or (len(self._buffer), "")
        body, self._buffer = self._buffer[:at], self._buffer[at + len(end) :]
        self._is_inside = False
        if self._recipient is None:
            return self._part(body)
        is_cut = first_end is None and finish_reason != "stop"
        return self._whole(self._call(self._recipient, body, finish_reason if is_cut else None), body)

    def _growing(self, name: str) -> Parts | None:
        deltas = self._stream.grown(self._shape, self._buffer) if self._stream is not None else []
        named = tuple(replace(delta, name=name) for delta in deltas)
        return Parts(call_deltas=named) if named else None

    def _whole(self, call: ToolCall, body: str) -> Parts:
        further: tuple[CallDelta, ...] = ()
        sent_delta = self._stream.to_delta() if self._stream is not None else None
        if sent_delta is not None and self._stream is not None:
            further = tuple(replace(delta, name=call.name) for delta in self._stream.grown(self._shape, body))
            call, sent_delta = replace(call, id=sent_delta.id), self._stream.to_delta()
        rest = as_delta(call, self._count, sent_delta)
        self._count += 1
        return Parts(tool_calls=(call,), call_deltas=(*further, *rest))

    def _call(self, name: str, body: str, cut_by: str | None) -> ToolCall:
        if cut_by is not None:
            return replace(broken(body, f"the reply ended before the call did ({cut_by})"), name=name)
        try:
            if self._shape.style == "pairs" and "invoke name=" in body:
                (call,) = read_pairs(self._format, self._shape, body, self._parameters)
                return replace(call, id=new_id())
            return ToolCall(id=new_id(), name=name, arguments=read_arguments(body))
        except ValueError as error:
            return replace(broken(body, f"the call cannot be read: {error}"), name=name)

    def _part(self, text: str) -> Parts:
        if text:
            self._message_kinds.add(self._is_reasoning)
        return Parts(reasoning=text) if self._is_reasoning else Parts(text)

    def _find(self, end: str) -> int:
        """Where the message ends; a mark within the texts of a call is part of them."""
        at = self._buffer.find(end)
        is_json = self._recipient is not None and self._shape.style == "named"
        while at >= 0 and is_json and is_quoted(self._buffer[:at]):
            at = self._buffer.find(end, at + 1)
        return at


def _body_shape(written: ToolFormat) -> CallShape:
    """How the body of a message to a function is written."""
    text = written.calls[0].partition(_MESSAGE)[2]
    if "$pairs" not in text:
        return _BODY
    inner = ToolFormat(name=written.name, calls=(text,), pair=written.pair)
    shape = inner.shapes[0]
    head = re.compile(r"\s*" + re.escape(shape.opening) + shape.head.pattern)
    return replace(shape, head=head, closing="")
