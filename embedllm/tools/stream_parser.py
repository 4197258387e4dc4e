"""Tool calls in a reply that comes in pieces: what cannot be one is passed on, a call is given once it is whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from embedllm.tools.body_parsers import read_body
from embedllm.tools.calls import CallDelta, Parameters, Parts, ToolCall, new_id
from embedllm.tools.deltas import ArgumentStream, as_delta
from embedllm.tools.formats import CallShape, ToolFormat
from embedllm.tools.notations.pairs import scan_pairs
from embedllm.tools.notations.values import is_quoted

_SPACE = " \t\r\n"
_BARE = ('{"name":', '{"type":"function"', '{"function":', '{"parameters":', '{"arguments":')  # without space
_LIKE_A_CALL = re.compile(r'"(?:arguments|parameters)"\s*:')
_NAME = re.compile(r'"(?:tool_)?name"\s*:\s*"([\w.:-]+)"')
_QUOTES = re.compile(r"\\.|['\"]", re.DOTALL)
_PYTHON_START = re.compile(r"\s*\[\s*([A-Za-z_][\w.:/-]*)?(\s*\()?")


@dataclass(frozen=True, slots=True)
class _Open:
    """A call that is being read."""

    before: str  # what the text gets back when it is none: space, and the mark
    shapes: tuple[CallShape, ...]  # what it may be
    is_certain: bool
    is_prompted: bool = False  # the prompt ended with the mark


class CallReader:
    """Parts the text of a reply from the calls in it; see ToolFormat.

    prompt: the end of it may be the mark of a call.
    """

    def __init__(self, written: ToolFormat, parameters: Parameters, *, prompt: str = "") -> None:
        self._format = written
        self._parameters = parameters
        self._buffer = ""
        self._open: _Open | None = None
        self._stream: ArgumentStream | None = None
        self._count = 0  # of calls so far
        self._is_start = written.is_bare
        self._is_behind_call = False
        self._marks = (*written.openings, *written.ignorable)
        end = prompt.rstrip()
        if opened := next((mark for mark in written.openings if end.endswith(mark)), ""):
            self._begin("", opened, is_certain=True)
            self._open = replace(self._open, before="", is_prompted=True) if self._open else None

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece. Space before a call is part of the call."""
        self._buffer += piece
        text = ""
        calls: list[ToolCall] = []
        deltas: list[CallDelta] = []
        while (moved := self._step(calls, deltas, finish_reason)) is not None:
            text += moved
        return Parts(text, "", tuple(calls), tuple(deltas))

    def _begin(self, before: str, mark: str, *, is_certain: bool) -> None:
        shapes = tuple(shape for shape in self._format.shapes if shape.opening == mark)
        self._open = _Open(before + mark, shapes, is_certain)
        self._stream = ArgumentStream(self._format, self._parameters, self._count)

    def _step(self, calls: list[ToolCall], deltas: list[CallDelta], finish_reason: str | None) -> str | None:
        """Goes on by a mark, or a stretch of text; None when more has to come."""
        if self._open is not None:
            return self._inside(self._open, calls, deltas, finish_reason)
        if not self._buffer:
            return None
        if self._is_start:
            starts = self._starts(is_end=finish_reason is not None)
            if starts is None:
                return None
            if starts:
                self._open = _Open("", self._format.shapes[:1], self._format.shapes[0].style == "python")
            self._is_start = False
            return ""
        return self._outside(is_end=finish_reason is not None)

    def _starts(self, *, is_end: bool) -> bool | None:
        """Whether the reply is a call from its first character; None when more has to come."""
        for mark in self._format.ignored:
            if self._buffer.lstrip().startswith(mark):
                self._buffer = self._buffer.lstrip().removeprefix(mark)
        if not is_end and any(mark.startswith(self._buffer.lstrip()) for mark in self._format.ignored):
            return None
        if self._format.shapes[0].style != "python":
            compact = re.sub(r"\s", "", self._buffer).removeprefix("[")
            if compact.startswith(_BARE):
                return True
            return None if any(start.startswith(compact) for start in _BARE) and not is_end else False
        match = _PYTHON_START.match(self._buffer)
        if match is None:
            return None if not self._buffer.strip() and not is_end else False
        if match[2]:
            return not self._parameters or match[1] in self._parameters
        return None if match.end() == len(self._buffer) and not is_end else False

    def _outside(self, *, is_end: bool) -> str | None:
        marks = self._marks + (self._format.closings if self._is_behind_call else ())
        first_mark = min(((at, mark) for mark in marks if (at := self._buffer.find(mark)) >= 0), default=None)
        is_closing = self._is_behind_call and first_mark is not None and first_mark[1] in self._format.closings
        if is_closing and first_mark is not None and self._buffer[: first_mark[0]].strip():
            self._is_behind_call = False
            return ""
        if first_mark is not None:
            at, mark = first_mark
            mark = max((m for m in marks if self._buffer.startswith(m, at)), key=len)
            if not is_end and self._may_be_longer(at, mark, marks):
                return None
            text = self._buffer[:at].rstrip(_SPACE)
            if mark in self._format.openings:
                self._begin(self._buffer[len(text) : at], mark, is_certain=self._format.is_certain)
            self._buffer = self._buffer[at + len(mark) :]
            return text
        certain = len(self._buffer)
        if not is_end:
            certain = len(self._buffer[: certain - begun(self._buffer, marks)].rstrip(_SPACE))
        text, self._buffer = self._buffer[:certain], self._buffer[certain:]
        self._is_behind_call = self._is_behind_call and not text
        return text or None

    def _inside(
        self, call: _Open, calls: list[ToolCall], deltas: list[CallDelta], finish_reason: str | None
    ) -> str | None:
        """Reads a call to its end, if that has come; text when it was none after all."""
        if (text := self._for_the_user()) is not None:
            return text
        if call.is_prompted and self._buffer and not self._may_be_named(call.shapes[0]):
            self._open, self._stream = None, None
            return ""
        shape = _likely(call.shapes, self._buffer, is_end=finish_reason is not None)
        if shape is None:
            return None
        ends = (shape.closing,) if shape.closing else self._marks
        first_end = self._find(shape, ends, is_end=finish_reason is not None)
        if first_end is None and finish_reason is None:
            if self._stream is not None and call.is_certain:
                deltas += self._stream.grown(shape, self._buffer)
            return None
        at, end = first_end or (len(self._buffer), "")
        if finish_reason is None and self._may_be_longer(at, end, ends):
            return None
        body, self._buffer = self._buffer[:at], self._buffer[at + len(end) :]
        self._open = None
        body_calls = self._read(
            call, shape, body, finish_reason if first_end is None and finish_reason != "stop" else None
        )
        if body_calls is None:
            return call.before + body + end
        sent_delta = self._stream.to_delta() if self._stream is not None else None
        if sent_delta is not None and self._stream is not None:
            deltas += self._stream.grown(shape, body)
            sent_delta = self._stream.to_delta()
        for place, one in enumerate(body_calls):
            one = replace(one, id=sent_delta.id) if place == 0 and sent_delta is not None else one
            calls.append(one)
            deltas += as_delta(one, self._count, sent_delta if place == 0 else None)
            self._count += 1
        self._stream, self._is_behind_call = None, True
        if end in self._format.openings:
            self._begin("", end, is_certain=call.is_certain)
        return ""

    def _read(self, call: _Open, shape: CallShape, body: str, cut_by: str | None) -> list[ToolCall] | None:
        """The calls of a body; None when it is none."""
        if not call.is_certain and not _LIKE_A_CALL.search(body):
            return None
        if cut_by is not None:
            return [broken(body, f"the reply ended before the call did ({cut_by})", shape)]
        is_word = bool(shape.opening) and shape.opening[-1] not in ">]}"  # such as "<function" in a text about XML
        if is_word and shape.style in ("named", "pairs", "tree") and not shape.head.match(body):
            return None
        problem = ""
        for one in (shape, *(other for other in call.shapes if other is not shape)):
            try:
                return [
                    body_call if body_call.id else replace(body_call, id=new_id())
                    for body_call in read_body(self._format, one, body, self._parameters)
                ]
            except ValueError as error:
                problem = problem or f"the call cannot be read: {error}"
        return [broken(body, problem, shape)]

    def _may_be_longer(self, at: int, mark: str, marks: Sequence[str]) -> bool:
        """Whether the mark at a place may be the beginning of another one, the rest of which is still to come."""
        rest = self._buffer[at:]
        return any(other != mark and other.startswith(mark) and other.startswith(rest) for other in marks)

    def _may_be_named(self, shape: CallShape) -> bool:
        """Whether what the reply begins with may be a tool's name, or a call without one."""
        start = self._buffer.lstrip()
        names = (*self._parameters, *([self._format.text_name] if self._format.text_name else ()))
        is_named = not self._parameters or any(name.startswith(start) or start.startswith(name) for name in names)
        return is_named if shape.text.startswith(f"{shape.opening}$name") else True

    def _for_the_user(self) -> str | None:
        """The text of a message to the user, where its name says that it is one."""
        name = self._format.text_name
        if not name or not self._buffer.startswith(f"{name}\n"):
            return None
        self._buffer, self._open, self._stream = self._buffer.removeprefix(f"{name}\n"), None, None
        return ""

    def _find(self, shape: CallShape, ends: Sequence[str], *, is_end: bool) -> tuple[int, str] | None:
        """Where the mark is that ends the call, not one within its texts."""
        start = 0
        is_open = is_end and self._is_text_at(shape, len(self._buffer))  # not at each piece: it reads all of it
        if shape.style == "pairs" and (head := shape.head.match(self._buffer)):
            parameters = self._parameters.get(head["name"], {})
            scanned = scan_pairs(self._format, self._buffer, head.end(), parameters)
            if scanned.is_open and not is_end:
                return None
            start, is_open = scanned.end, scanned.is_open
        candidates = [(at, end) for end in ends if (at := self._unquoted(shape, end, start)) >= 0]
        if not candidates and is_end and is_open:  # what is malformed may have a quote without its other half
            candidates = [(at, end) for end in ends if (at := self._buffer.find(end)) >= 0]
        return min(candidates, key=lambda pair: (pair[0], -len(pair[1])), default=None)

    def _unquoted(self, shape: CallShape, end: str, start: int) -> int:
        at = self._buffer.find(end, start)
        while at >= 0 and self._is_text_at(shape, at):
            at = self._buffer.find(end, at + 1)
        return at

    def _is_text_at(self, shape: CallShape, at: int) -> bool:
        if shape.style in ("json", "named"):
            return is_quoted(self._buffer[:at])
        if shape.style == "gemma":
            return self._buffer.count(self._format.quote, 0, at) % 2 == 1
        return shape.style == "python" and _is_quoted_in_python(self._buffer[:at])


def _likely(shapes: tuple[CallShape, ...], body: str, *, is_end: bool) -> CallShape | None:
    """The shape of a body, as far as its beginning shows it; None when more has to come."""
    if len(shapes) == 1:
        return shapes[0]
    start = body.lstrip()[:1]
    if not start and not is_end:
        return None
    is_json = start in ("{", "[")
    alike = [shape for shape in shapes if (shape.style == "json") == is_json] or list(shapes)
    return next((shape for shape in alike if shape.style != "json" and shape.head.match(body)), alike[0])


def broken(body: str, problem: str, shape: CallShape | None = None) -> ToolCall:
    """What the model wrote in the place of a call."""
    name = _NAME.search(body)
    head = shape.head.match(body) if shape is not None and shape.style in ("named", "pairs", "tree") else None
    tool_name = name[1] if name else (head.groupdict().get("name") or "") if head else ""
    return ToolCall(id=new_id(), name=tool_name, problem=f"{problem}.", text=body.strip())


def begun(text: str, marks: Sequence[str]) -> int:
    """How many of the last characters may be the beginning of a mark."""
    longest = max(map(len, marks), default=1) - 1
    return next(
        (n for n in range(min(longest, len(text)), 0, -1) if any(mark.startswith(text[-n:]) for mark in marks)), 0
    )


def _is_quoted_in_python(text: str) -> bool:
    quote = ""
    for mark in _QUOTES.findall(text):
        quote = mark if not quote and len(mark) == 1 else "" if mark == quote else quote
    return bool(quote)
