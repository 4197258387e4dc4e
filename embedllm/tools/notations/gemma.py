"""The body of a call as Gemma writes it: call:name{key:value, ...}, with texts between marks of their own.

Source: ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices; Gemma 4 has other marks for texts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from embedllm.tools.calls import Parameters, ToolCall
from embedllm.tools.formats import CallShape, ToolFormat
from embedllm.tools.notations.values import parse_json, typed_value

if TYPE_CHECKING:
    from embedllm.types import JSON

_HEAD = re.compile(r"\s*call:\s*([^\s{]+)\s*(?=\{)")
_KEY = re.compile(r"\s*([^\s:{}\[\],<]+)\s*:")
_SCALAR = re.compile(r"\s*(-?\d[\w.+-]*|true|false|null|None)\s*(?=[,}\]]|$)")
_DEEPEST = 100  # values within values


def read_gemma(written: ToolFormat, _: CallShape, body: str, parameters: Parameters) -> list[ToolCall]:
    """The call that a body is, with the format's mark on both sides of a text. Raises ValueError."""
    head = _HEAD.match(body)
    if head is None:
        raise ValueError("expected call:name{...}")
    reader = _Values(body, head.end(), written.quote)
    arguments = reader.value()
    if reader.text[reader.at :].strip():
        raise ValueError(f"after the arguments comes {reader.text[reader.at :].strip()[:80]!r}")
    assert isinstance(arguments, dict)  # it begins with a brace
    schema = parameters.get(head[1], {})
    typed = {name: typed_value(value, name, schema) for name, value in arguments.items()}
    return [ToolCall(id="", name=head[1], arguments=typed)]


class _Values:
    """Reads values from a place on."""

    def __init__(self, text: str, at: int, quote: str) -> None:
        self.text = text
        self.at = at
        self._quote = quote
        self._depth = 0

    def value(self) -> JSON:
        for opening, read in (("{", self._object), ("[", self._list)):
            if self._skip(opening):
                self._depth += 1
                if self._depth > _DEEPEST:
                    raise ValueError("it is nested too deeply")
                value = read()
                self._depth -= 1
                return value
        if self._skip(self._quote):
            return self._text()
        if scalar := _SCALAR.match(self.text, self.at):
            self.at = scalar.end()
            return None if scalar[1] == "None" else parse_json(scalar[1])  # what Gemma 4's template says of null
        raise ValueError(f"expected a value, found {self.text[self.at :][:80]!r}")

    def _text(self) -> str:
        end = self.text.find(self._quote, self.at)
        if end < 0:
            raise ValueError(f"a text has no '{self._quote}' at its end")
        start, self.at = self.at, end + len(self._quote)
        return self.text[start:end]

    def _key(self) -> str:
        if self._skip(self._quote):
            key = self._text()
            if self._skip(":"):
                return key
        elif key := _KEY.match(self.text, self.at):
            self.at = key.end()
            return key[1]
        raise ValueError(f"expected a name and a colon, found {self.text[self.at :][:80]!r}")

    def _object(self) -> dict[str, JSON]:
        members: dict[str, JSON] = {}
        while not self._skip("}"):
            if members and not self._skip(","):
                raise ValueError(f"expected a comma or brace, found {self.text[self.at :][:80]!r}")
            key = self._key()
            if key in members:
                raise ValueError(f"'{key}' is there twice")
            members[key] = self.value()
        return members

    def _list(self) -> list[JSON]:
        items: list[JSON] = []
        while not self._skip("]"):
            if items and not self._skip(","):
                raise ValueError(f"expected a comma or bracket, found {self.text[self.at :][:80]!r}")
            items.append(self.value())
        return items

    def _skip(self, mark: str) -> bool:
        """Goes past the mark where it comes next, after space."""
        match = re.compile(r"\s*" + re.escape(mark)).match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match is not None
