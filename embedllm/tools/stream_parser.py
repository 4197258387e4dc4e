"""Tool calls in a reply that comes in pieces: what cannot be one is passed on, a call is given once it is whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from embedllm.tools.calls import Parameters, Parts, ToolCall, new_id

if TYPE_CHECKING:
    from embedllm.tools.formats import ToolFormat

_SPACE = " \t\r\n"
_BARE = ('{"name":', '{"type":"function"', '{"function":', '{"parameters":', '{"arguments":')  # without space
_LIKE_A_CALL = re.compile(r'"(?:arguments|parameters)"\s*:')
_NAME = re.compile(r'"(?:tool_)?name"\s*:\s*"([\w.:-]+)"')
_QUOTE = re.compile(r'\\.|"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Open:
    """A call that is being read."""

    before: str  # what the text gets back when it is none: space, and the mark
    ends: tuple[str, ...]  # none: the end of the reply
    is_certain: bool


class CallReader:
    """Parts the text of a reply from the calls in it; see ToolFormat."""

    def __init__(self, written: ToolFormat, parameters: Parameters) -> None:
        self._format = written
        self._parameters = parameters
        self._held = ""
        self._open: _Open | None = None
        self._is_start = written.is_bare
        self._marks = (*written.opens, *written.ignored)

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece. Space before a call is part of the call."""
        self._held += piece
        text = ""
        calls: list[ToolCall] = []
        while (moved := self._step(calls, finish_reason)) is not None:
            text += moved
        return Parts(text, "", tuple(calls))

    def _step(self, calls: list[ToolCall], finish_reason: str | None) -> str | None:
        """Goes on by a mark, or a stretch of text; None when more has to come."""
        if self._open is not None:
            return self._inside(self._open, calls, finish_reason)
        if not self._held:
            return None
        if self._is_start:
            compact = re.sub(r"\s", "", self._held).removeprefix("[")
            if compact.startswith(_BARE):
                self._open = _Open("", (), is_certain=False)
            elif any(start.startswith(compact) for start in _BARE) and finish_reason is None:
                return None
            self._is_start = False
            return ""
        return self._outside(is_end=finish_reason is not None)

    def _outside(self, *, is_end: bool) -> str | None:
        found = min(((at, mark) for mark in self._marks if (at := self._held.find(mark)) >= 0), default=None)
        if found is not None:
            at, mark = found
            text = self._held[:at].rstrip(_SPACE)
            if mark in self._format.opens:
                ends = (self._format.close,) if self._format.close else self._format.opens
                self._open = _Open(self._held[len(text) : at] + mark, ends, self._format.is_certain)
            self._held = self._held[at + len(mark) :]
            return text
        certain = len(self._held)
        if not is_end:
            certain = len(self._held[: certain - begun(self._held, self._marks)].rstrip(_SPACE))
        text, self._held = self._held[:certain], self._held[certain:]
        return text or None

    def _inside(self, call: _Open, calls: list[ToolCall], finish_reason: str | None) -> str | None:
        """Reads a call to its end, if that has come; text when it was none after all."""
        found = min(((at, end) for end in call.ends if (at := self._find(end)) >= 0), default=None)
        if (
            found is None and finish_reason is not None and is_quoted(self._held)
        ):  # what is not JSON may have a quote without its other half
            found = min(((at, end) for end in call.ends if (at := self._held.find(end)) >= 0), default=None)
        if found is None and finish_reason is None:
            return None
        at, end = found or (len(self._held), "")
        body, self._held = self._held[:at], self._held[at + len(end) :]
        self._open = replace(call, before=end) if end in self._format.opens else None
        if not call.is_certain and not _LIKE_A_CALL.search(body):
            return call.before + body + end
        if found is None and finish_reason != "stop":
            calls.append(broken(body, f"the reply ended before the call did ({finish_reason})"))
        else:
            calls += read_calls(self._format, body, self._parameters)
        return ""

    def _find(self, end: str) -> int:
        """Where the mark is that ends the call, not one within its texts."""
        at = self._held.find(end)
        while at >= 0 and self._format.has_quotes and is_quoted(self._held[:at]):
            at = self._held.find(end, at + 1)
        return at


def read_calls(written: ToolFormat, body: str, parameters: Parameters) -> list[ToolCall]:
    """The calls in a body, each with an id; what cannot be read becomes a call with a problem."""
    try:
        return [call if call.id else replace(call, id=new_id()) for call in written.read(body, parameters)]
    except ValueError as error:
        return [broken(body, f"the call cannot be read: {error}")]


def broken(body: str, problem: str) -> ToolCall:
    """What the model wrote in the place of a call."""
    name = _NAME.search(body)
    return ToolCall(id=new_id(), name=name[1] if name else "", problem=f"{problem}.", text=body.strip())


def begun(text: str, marks: Sequence[str]) -> int:
    """How many of the last characters may be the beginning of a mark."""
    longest = max(map(len, marks), default=1) - 1
    return next(
        (n for n in range(min(longest, len(text)), 0, -1) if any(mark.startswith(text[-n:]) for mark in marks)), 0
    )


def is_quoted(text: str) -> bool:
    """Whether a text in double quotes is open at the end."""
    return sum(quote == '"' for quote in _QUOTE.findall(text)) % 2 == 1
