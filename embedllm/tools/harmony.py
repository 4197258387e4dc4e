"""A reply in Harmony's channels, which come in pieces: analysis is reasoning, what has a recipient is a call.

Source: github.com/openai/harmony docs/format.md. The reply begins after "<|start|>assistant" in the prompt.
"""

from __future__ import annotations

import re
from dataclasses import replace

from embedllm.tools.body_parsers import read_arguments
from embedllm.tools.calls import Parts, ToolCall, new_id
from embedllm.tools.stream_parser import begun, broken, is_quoted

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyReader:
    """Parts a reply of such a model."""

    def __init__(self) -> None:
        self._held = ""
        self._recipient: str | None = None
        self._is_reasoning = False
        self._is_inside = False  # of a message, otherwise of what stands before it
        self._said: set[bool] = set()  # the kinds that had a message: whether it was reasoning

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece."""
        self._held += piece
        said = Parts()
        while (moved := self._step(finish_reason)) is not None:
            said = Parts(said.text + moved.text, said.reasoning + moved.reasoning, said.tool_calls + moved.tool_calls)
        return said

    def _step(self, finish_reason: str | None) -> Parts | None:
        if self._is_inside:
            return self._message(finish_reason)
        header, mark, rest = self._held.partition(_MESSAGE)
        if not mark:
            if finish_reason is None or not self._held:
                return None
            self._held = ""
            return Parts() if "<|" in header else Parts(header)  # a model that left the format
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        self._held, self._is_inside = rest, True
        self._recipient = recipient[1].removeprefix("functions.") if recipient else None
        self._is_reasoning = channel is not None and channel[1] == "analysis"
        is_further = self._recipient is None and self._is_reasoning in self._said
        return self._part("\n" if is_further else "")

    def _message(self, finish_reason: str | None) -> Parts | None:
        found = min(((at, end) for end in _ENDS if (at := self._find(end)) >= 0), default=None)
        if found is None and finish_reason is None:
            if self._recipient is not None:
                return None
            certain = len(self._held) - begun(self._held, _ENDS)
            text, self._held = self._held[:certain], self._held[certain:]
            return self._part(text) if text else None
        at, end = found or (len(self._held), "")
        body, self._held = self._held[:at], self._held[at + len(end) :]
        self._is_inside = False
        if self._recipient is None:
            return self._part(body)
        is_cut = found is None and finish_reason != "stop"
        return Parts(tool_calls=(self._call(self._recipient, body, finish_reason if is_cut else None),))

    def _call(self, name: str, body: str, cut_by: str | None) -> ToolCall:
        if cut_by is not None:
            return replace(broken(body, f"the reply ended before the call did ({cut_by})"), name=name)
        try:
            return ToolCall(id=new_id(), name=name, arguments=read_arguments(body))
        except ValueError as error:
            return replace(broken(body, f"the call cannot be read: {error}"), name=name)

    def _part(self, text: str) -> Parts:
        if text:
            self._said.add(self._is_reasoning)
        return Parts(reasoning=text) if self._is_reasoning else Parts(text)

    def _find(self, end: str) -> int:
        """Where the message ends; a mark within the texts of a call is part of them."""
        at = self._held.find(end)
        while at >= 0 and self._recipient is not None and is_quoted(self._held[:at]):
            at = self._held.find(end, at + 1)
        return at
