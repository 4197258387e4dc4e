"""The grammar of a call, made from the description that its reader is made from: see ToolFormat.

Arguments that are JSON are held by their schema as such. The other notations are held part by part: names and order of
the arguments, which of them are required, types, choices, lengths and patterns; "format" where a regex can say it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from embedllm.sampling.structured.json_schema import followed
from embedllm.sampling.structured.response_format import Source
from embedllm.tools.formats import ToolFormat, mark_texts, parts
from embedllm.tools.notations.value_grammar import ValueGrammar

if TYPE_CHECKING:
    from embedllm.types import JSON

_INNER_MARK = re.compile(r"\uff5c[^\s\uff5c<>]+\uff5c")
_IDS, _INDICES = "/[a-zA-Z0-9]{9}/", "/[0-9]/"
_TEXT = r"/(?s:(\s*[^\s{].*)?)/"


class CallGrammar:
    """Writes the rules of one call, of one of several tools.

    special: the id of a mark that is a special token. stops: the tokens that end a reply, which no grammar holds.
    """

    def __init__(self, written: ToolFormat, special: Callable[[str], int | None], stops: frozenset[int]) -> None:
        self._format = written
        self._special = special
        self._stops = stops
        self._values = ValueGrammar(self.literal, special)

    def source(
        self,
        tools: Mapping[str, Mapping[str, JSON]],
        prompt: str,
        thought: tuple[str, str] | None,
        *,
        or_text: bool = False,
    ) -> Source:
        """The grammar. prompt: what stands before it, perhaps with the beginning of a call.

        thought: the marks of reasoning that the prompt has begun, so that it comes to its end first.
        or_text: any text does as well, but one that begins with a brace.
        """
        opening, closing = self._format.section
        if closing.strip().startswith("]") and not mark_texts(closing):
            closing = "]"
        calls = [self._call(name, parameters, prompt) for name, parameters in tools.items()]
        before = self.literal(_after(opening, prompt)) if opening.strip() else ""
        after = self._ending(closing)
        begun = ""
        if thought is not None:
            begun = f"{self._values.text_without(thought[1])} {self.literal(thought[1])} /\\n{{0,2}}/"
        start = " ".join(filter(None, (begun, before, "call", after)))
        rules = {"start": f"{start} | {_TEXT}" if or_text else start, "call": " | ".join(calls), **self._values.rules}
        return Source(kind="lark", text="".join(f"{name}: {body}\n" for name, body in rules.items()))

    def _call(self, name: str, parameters: Mapping[str, JSON], prompt: str) -> str:
        """The rule of one tool's call."""
        pieces: list[str] = []
        cut = parts(self._format.calls[0])
        for place, (hole, text) in enumerate(cut):
            if hole == "name":
                pieces.append(self.literal(name))
            elif hole in ("id", "index"):
                pieces.append(_IDS if hole == "id" else _INDICES)
            elif hole:
                pieces.append(self._arguments(hole, parameters))
            else:
                said = _after(text, prompt) if place == 0 and not self._format.section[0].strip() else text
                is_last = place == len(cut) - 1 and not self._format.section[1].strip()
                pieces.append(self._ending(said) if is_last else self.literal(said))
        return self._values.rule(" ".join(filter(None, pieces)))

    def _arguments(self, notation: str, parameters: Mapping[str, JSON]) -> str:
        schema = closed({"type": "object", **(parameters or {"properties": {}})})  # {}: no arguments; else any
        if notation == "arguments":
            return self._values.json_rule(cast("dict[str, JSON]", schema))
        root = followed(schema)
        return self._values.arguments(notation, root if isinstance(root, dict) else {}, self._format)

    def _ending(self, text: str) -> str:
        """What ends a call; a token that ends the reply itself is no part of it."""
        marks = [mark for mark in mark_texts(text) if self._special(mark) in self._stops]
        return self.literal(text.partition(marks[0])[0].rstrip() if marks else text.rstrip())

    def literal(self, text: str) -> str:
        """A text in Lark, its special tokens as such."""
        pieces: list[str] = []
        plain = ""
        at = 0
        while at < len(text):
            mark = next((mark for mark in _marks_at(text, at) if self._special(mark) is not None), None)
            if mark is None:
                plain += text[at]
                at += 1
                continue
            pieces += [json.dumps(plain)] if plain else []
            pieces.append(f"<[{self._special(mark)}]>")
            plain = ""
            at += len(mark)
        pieces += [json.dumps(plain)] if plain else []
        return " ".join(pieces)


def _marks_at(text: str, at: int) -> Sequence[str]:
    """The marks that begin at a place."""
    if text[at] not in "<[]\uff5c":
        return ()
    found = [mark for mark in mark_texts(text[at:])[:1] if text.startswith(mark, at)]
    inner = _INNER_MARK.match(text, at)
    return (*found, *([inner[0]] if inner else ()))


def _after(text: str, prompt: str) -> str:
    """What is left of a text whose beginning the prompt ends with."""
    ends = (prompt, prompt.rstrip())
    done = next((n for n in range(len(text), 0, -1) if any(end.endswith(text[:n]) for end in ends)), 0)
    return text[done:] if text[:done].strip() else text.lstrip("\n")


def closed(schema: JSON) -> JSON:
    """A schema without members that its objects do not name, where it says nothing of them; so no name comes twice.

    OpenAPI's "nullable", which tool_schema() writes for None as transformers does, is a choice with null.
    """
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(nullable := schema.get("nullable"), bool):
        rest = closed({key: value for key, value in schema.items() if key != "nullable"})
        return {"anyOf": [rest, {"type": "null"}]} if nullable else rest
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
            found[key] = {name: closed(part) for name, part in value.items()}
        elif key in ("items", "anyOf", "oneOf", "prefixItems", "additionalProperties"):
            found[key] = closed(value)
        elif value is not None:
            found[key] = value
    return {"additionalProperties": False, **found} if "properties" in found else found
