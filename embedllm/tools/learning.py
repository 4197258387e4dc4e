"""A tool format that is in no table, learnt from how a chat template shows made-up calls.

Two calls with known names, arguments and ids are shown. What stands around these is the format: what is alike before
both names is a call's opening, what is alike behind both is its closing, and the rest is between them and around all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from embedllm.tools.formats import ToolFormat
from embedllm.tools.notations.values import TYPES
from embedllm.tools.template_probe import MadeCall, TemplateProbe

if TYPE_CHECKING:
    from embedllm.types import JSON

_UNIT = re.compile(r"\]<\][^<>\[\]]*\[>\[|<[^<>\s]*>?|\[/?[A-Z_]+\]|\uff5c[^\s\uff5c<>]+\uff5c|\w+|\s|.", re.DOTALL)
_ARGUMENTS: dict[str, JSON] = {"alphakey": "alphatext", "betakey": "betatext"}
_NAMES, _IDS = ("firstname", "secondname"), ("aB3dE6gH9", "bC4eF7hI0")
_OF_TYPES: dict[str, JSON] = {
    "string": "gammatext", "number": 731, "boolean": True, "null": None, "array": [731], "object": {"deltakey": 731},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Cut:
    """Two calls of one form, cut: what repeats in both, and what does not."""

    section: tuple[str, str]
    head: str
    inner: str  # from the name to the end of the arguments
    tail: str
    between: str


def learnt_format(probe: TemplateProbe, *, as_text: bool) -> ToolFormat | None:
    """The format of a template that shows several calls in a message; None where they are in no form known here."""
    calls = [MadeCall(name, _ARGUMENTS, made_id) for name, made_id in zip(_NAMES, _IDS, strict=True)]
    shown = probe.calls(calls, as_text=as_text)
    if shown is None or "$" in shown.reply or any(shown.reply.count(name) != 1 for name in _NAMES):
        return None
    text = shown.reply
    for made_id in _IDS:
        text = text.replace(made_id, "$id")
    by_json = _json_arguments(text)
    if by_json is not None:
        return _described(by_json, "$arguments", "", {})
    cut_and_pair = _pairs(text)
    if cut_and_pair is None:
        return None
    cut, pair = cut_and_pair
    typed = _types(probe, pair, as_text=as_text)
    if typed is None:
        return None
    return _described(cut, "$pairs", *typed)


def _described(cut: _Cut, arguments: str, pair: str, types: dict[str, str]) -> ToolFormat | None:
    if not any(mark in cut.section[0] + cut.head for mark in "<[>"):
        return None  # no mark to find a call by
    call = f"{cut.head}$name{cut.inner}{arguments}{cut.tail}"
    return ToolFormat(
        name="learnt", calls=(call,), section=cut.section, between=cut.between, pair=pair, types=types,
        is_bare=call.startswith("{"),
    )  # fmt: skip


def _json_arguments(text: str) -> _Cut | None:
    """Two calls whose arguments are JSON objects."""
    at = [text.index(name) for name in _NAMES]
    ends = [place + len(name) for place, name in zip(at, _NAMES, strict=True)]
    spans = [_object_at(text, ends[0], at[1]), _object_at(text, ends[1], len(text))]
    if spans[0] is None or spans[1] is None:
        return None
    return _cut(text, at, ends, [spans[0], spans[1]])


def _object_at(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Where the arguments stand as JSON."""
    decoder = json.JSONDecoder()
    for place in (match.start() for match in re.finditer(r"\{", text[:end]) if match.start() >= start):
        try:
            value, behind = decoder.raw_decode(text, place)
        except ValueError:
            continue
        if value == _ARGUMENTS:
            return place, behind
    return None


def _cut(text: str, at: Sequence[int], ends: Sequence[int], spans: Sequence[tuple[int, int]]) -> _Cut | None:
    """at, ends: of the two names; spans: of their arguments."""
    inner = [text[end:start] for end, (start, _) in zip(ends, spans, strict=True)]
    if inner[0] != inner[1]:
        inner = [re.sub(r"\d+", "$index", part) for part in inner]
    gap, last = text[spans[0][1] : at[1]], text[spans[1][1] :]
    head = _common_end(text[: at[0]], gap)
    head = head[len(head) - len(head.lstrip()) :] if head.strip() else head
    tail = _common_start(gap[: len(gap) - len(head)], last)
    between = gap[len(tail) : len(gap) - len(head)]
    if inner[0] != inner[1]:
        return None
    section = (text[: at[0] - len(head)].lstrip(), last[len(tail) :].rstrip())
    if between.strip() and not re.fullmatch(r"\s*[,;]?\s*", between):
        head, between = between.lstrip() + head, between[: len(between) - len(between.lstrip())]
        if not section[0].endswith(head[: len(head) - len(gap)] or head):
            return None
    return _Cut(section, head, inner[0], tail, between)


def _pairs(text: str) -> tuple[_Cut, tuple[str, str, str]] | None:
    """Two calls whose arguments stand one by one, and the pieces of an argument: before, within, behind."""
    at = [text.index(name) for name in _NAMES]
    ends = [place + len(name) for place, name in zip(at, _NAMES, strict=True)]
    spans: list[tuple[int, int]] = []
    pieces: set[tuple[str, str, str]] = set()
    for start, end in ((ends[0], at[1]), (ends[1], len(text))):
        words = [(key, str(value)) for key, value in _ARGUMENTS.items()]
        places = [(text.find(key, start, end), text.find(value, start, end)) for key, value in words]
        if not all(start <= key < value for key, value in places):
            return None
        (key1, value1), (key2, value2) = places
        value1_end, value2_end = value1 + len(words[0][1]), value2 + len(words[1][1])
        middle = text[key1 + len(words[0][0]) : value1]
        if middle != text[key2 + len(words[1][0]) : value2]:
            return None
        gap = text[value1_end:key2]
        before = _common_end(text[start:key1], gap)
        before = before.lstrip() or before
        behind = _common_start(gap[: len(gap) - len(before)], text[value2_end:end])
        space = gap[len(behind) : len(gap) - len(before)]
        if space.strip() or not re.search(r"[<>\]\[]", behind):
            return None
        pieces.add((before, middle, behind + space))
        last = value2_end + len(behind)
        last += len(space) if text.startswith(space, last) else 0
        spans.append((key1 - len(before), last))
    cut = _cut(text, at, ends, spans)
    return (cut, pieces.pop()) if cut is not None and len(pieces) == 1 else None


def _types(probe: TemplateProbe, pair: tuple[str, str, str], *, as_text: bool) -> tuple[str, dict[str, str]] | None:
    """The pair's description, and what its mark says of each type of value."""
    before, middle, behind = pair
    attribute = re.compile(re.sub(r'"\w+"', lambda _: '"([^"]*)"', re.escape(middle), count=1))
    type_marks: dict[str, str] = {}
    for name in TYPES:
        shown = probe.calls([MadeCall(_NAMES[0], {"alphakey": _OF_TYPES[name]})], as_text=as_text)
        if shown is None or "alphakey" not in shown.reply:
            continue  # some leave out null
        match = attribute.match(shown.reply.partition("alphakey")[2])
        if match is None:
            return None
        type_marks[name] = match[1] if attribute.groups else ""
    if len(set(type_marks.values())) == 1:
        return f"{before}$key{middle}$value{behind}", {}
    return f"{before}$key{middle.replace(type_marks['string'], '$type', 1)}$value{behind}", type_marks


def _common_start(first: str, second: str) -> str:
    units = [_UNIT.findall(first), _UNIT.findall(second)]
    return "".join(_alike(*units))


def _common_end(first: str, second: str) -> str:
    units = [_UNIT.findall(text)[::-1] for text in (first, second)]
    return "".join(_alike(*units)[::-1])


def _alike(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """What two sequences begin with."""
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]
