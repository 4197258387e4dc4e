"""Calls whose arguments stand one by one between marks, as XML or nearly: <parameter=name>value</parameter>."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from embedllm.tools.calls import Parameters, ToolCall
from embedllm.tools.formats import CallShape, ToolFormat, loose, pattern
from embedllm.tools.notations.values import TYPES, is_quoted, kinds, parse_json, text_value, unique

if TYPE_CHECKING:
    from embedllm.types import JSON


@dataclass(frozen=True, slots=True)
class Pair:
    """An argument as it was written."""

    key: str
    text: str
    type: str | None  # what the mark says of it
    is_verbatim: bool = False  # it is a text, whatever it looks like


@dataclass(frozen=True, slots=True)
class Scanned:
    """The arguments from a place on."""

    pairs: list[Pair]
    end: int  # behind the last one that is whole
    is_open: bool  # one has begun behind it


@lru_cache
def _patterns(pair: str) -> tuple[re.Pattern[str], str, bool]:
    """What opens an argument, the mark that closes it, and whether the value stands on lines of its own."""
    before, _, after = pair.partition("$value")
    on_lines = before.endswith("\n") and after.startswith("\n")
    opening = pattern(before.rstrip("\n") if on_lines else before) + (r"\n?" if on_lines else "")
    return re.compile(r"\s*" + opening), after.strip(), on_lines


def scan_pairs(written: ToolFormat, text: str, at: int, parameters: Mapping[str, JSON]) -> Scanned:
    """The arguments that are written from a place on, as far as they go. parameters: of the tool.

    In an object or list what closes an argument may stand within quotes.
    """
    opening, closing, on_lines = _patterns(written.pair)
    pairs: list[Pair] = []
    while begun := opening.match(text, at):
        start, groups = begun.end(), begun.groupdict()
        if (verbatim := _verbatim(written, text, start)) is not None:
            start, inner_end = verbatim
            end = text.find(closing, inner_end) if inner_end >= 0 else -1
            if end < 0:
                return Scanned(pairs, at, True)
            pairs.append(Pair(groups["key"].strip(), text[start:inner_end], groups.get("type"), is_verbatim=True))
            at = end + len(closing)
            continue
        end = text.find(closing, start)
        if text[start : start + 2].lstrip()[:1] in ("{", "[") and not _is_text(written, groups, parameters):
            while end >= 0 and is_quoted(text[start:end]):
                end = text.find(closing, end + 1)
        if end < 0:
            return Scanned(pairs, at, True)
        value = text[begun.end() : end]
        if on_lines:
            value = value.removesuffix("\n")
        pairs.append(Pair(groups["key"].strip(), value, groups.get("type")))
        at = end + len(closing)
    return Scanned(pairs, at, False)


def _verbatim(written: ToolFormat, text: str, start: int) -> tuple[int, int] | None:
    """Where a text begins and ends that stands between marks of its own; its end is -1 where that has to come."""
    opening, closing = written.verbatim
    if not opening or not text.startswith(opening, start):
        return None
    return start + len(opening), text.find(closing, start + len(opening))


def _is_text(written: ToolFormat, groups: Mapping[str, str], parameters: Mapping[str, JSON]) -> bool:
    """Whether the value of an argument is a text and nothing else."""
    if written.types and "type" in groups:
        return written.types.get("string") == groups["type"]
    return kinds(_schema(parameters, groups["key"].strip()), parameters) == {"string"}


def _schema(parameters: Mapping[str, JSON], key: str) -> JSON:
    properties = parameters.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None


def read_pairs(written: ToolFormat, shape: CallShape, body: str, parameters: Parameters) -> list[ToolCall]:
    """The call that a body is; an argument's schema says whether its value is a text. Raises ValueError."""
    head = shape.head.match(body)
    if head is None:
        raise ValueError(f"expected it to be like {shape.text!r}")
    name = head["name"]
    scanned = scan_pairs(written, body, head.end(), parameters.get(name, {}))
    rest = body[scanned.end :].strip()
    tail = shape.text.partition("$pairs")[2].strip()
    expected = tail.removesuffix(shape.closing).strip()
    if rest and not re.fullmatch(f"(?:{loose(expected)})?", rest):
        raise ValueError(f"expected {written.pair.strip()}, found {rest[:80]!r}")
    pairs = [(pair.key, pair_value(written, pair, parameters.get(name, {}))) for pair in scanned.pairs]
    return [ToolCall(id="", name=name, arguments=unique(pairs))]


def pair_value(written: ToolFormat, pair: Pair, parameters: Mapping[str, JSON]) -> JSON:
    """The value of an argument, by what its mark says or else by its schema. parameters: of the tool."""
    if pair.is_verbatim:
        return pair.text
    schema = _schema(parameters, pair.key)
    if pair.type is None or not written.types:
        return text_value(pair.text, schema, parameters)
    types = [name for name in TYPES if written.types.get(name) == pair.type]
    if "string" in types:
        return pair.text
    if not types:
        return text_value(pair.text, schema, parameters)
    try:
        return parse_json(pair.text.strip())
    except ValueError as error:
        raise ValueError(f"the value of '{pair.key}' cannot be read: {error}") from error
