"""How a model writes tool calls, described once: the reader and the grammar of its calls are both made from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

Style = Literal["json", "named", "pairs", "python", "gemma", "tree"]

_HOLE = re.compile(r"\$(name|id|index|arguments|pairs|python|gemma|tree|key|value|type)\b")
_STYLES: Mapping[str, Style] = {"pairs": "pairs", "python": "python", "gemma": "gemma", "tree": "tree"}
_MARK = re.compile(r"\]<\][^<>\[\]]*\[>\[|<[^<>\s]+>|\[/?[A-Z_]+\]|\uff5c[^\s\uff5c<>]+\uff5c")
_PATTERNS = {
    "name": r"(?P<name>[^\s\"'<>\[\]{}()|]+)",
    "id": r"(?P<id>[^\s\"'<>\[\]{}()]*)",
    "index": r"\d+",
    "key": r"(?P<key>[^\"<>]+)",
    "type": r"(?P<type>[^\"<>]*)",
}


@dataclass(frozen=True, slots=True)
class CallShape:
    """One way of writing a call: a text with $name, $id and $index, and its arguments as one of

    - $arguments: a JSON object. The style is "json" where name and arguments are members of an object, else "named".
    - $pairs: each argument by itself, in the words of ToolFormat.pair.
    - $python: keyword arguments. $gemma: Gemma's own notation. $tree: nested elements, in ToolFormat.pair's words.
    """

    text: str
    style: Style
    opening: str  # the mark that it is found by; "" where it has none
    closing: str  # the mark that ends it; "" where it ends with the next call, or the reply
    head: re.Pattern[str]  # from behind the opening mark up to the arguments; unused for "json" and "python"


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How a family of models writes its calls."""

    name: str
    calls: tuple[str, ...]  # see CallShape; the first is what the grammar follows, all are read
    section: tuple[str, str] = ("", "")  # around all calls of a reply
    between: str = ""  # two calls
    pair: str = ""  # $key, $value and, where it says the type of the value, $type
    types: Mapping[str, str] = field(default_factory=dict)  # what $type is, by JSON's names of types
    verbatim: tuple[str, str] = ("", "")  # what may stand around a text of a pair, so that it may hold any mark
    quote: str = '"'  # around texts in Gemma's notation
    opens: tuple[str, ...] = ()  # other marks that models write in the place of the first call's
    signs: tuple[tuple[str, ...], ...] = ()  # a template for it has all texts of one of these
    ignored: tuple[str, ...] = ()  # further marks around calls, which say nothing
    is_bare: bool = False  # a reply may be calls from its first character, without a mark
    is_certain: bool = True  # whether the mark alone says that it is a call, or a body like one besides
    has_channels: bool = False  # the recipient is in the header of a message: channels.py
    text_name: str = ""  # what is written for a name where the text is for the user
    no_tool: tuple[str, ...] = ()  # names that say that no tool is called

    @cached_property
    def shapes(self) -> tuple[CallShape, ...]:
        shapes = tuple(_shape(text, self.section) for text in self.calls)
        return (*shapes, *(replace(shapes[0], opening=opening) for opening in self.opens))

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """The marks that calls are found by."""
        return tuple(dict.fromkeys(shape.opening for shape in self.shapes if shape.opening))

    @cached_property
    def ignorable(self) -> tuple[str, ...]:
        """Marks that say nothing where they stand outside of calls."""
        marks = (*(_trimmed(mark) for mark in self.section), *self.ignored)
        return tuple(dict.fromkeys(mark for mark in marks if _MARK.search(mark) and mark not in self.openings))

    @cached_property
    def closings(self) -> tuple[str, ...]:
        """Marks that say nothing where they stand directly behind a call."""
        return tuple(dict.fromkeys(shape.closing for shape in self.shapes if shape.closing))

    @property
    def marks(self) -> tuple[str, ...]:
        """What may be special tokens, and is part of the text that is read."""
        texts = (*self.calls, *self.section, self.between, self.pair, *self.ignored)
        single = [mark for text in texts for mark in mark_texts(text)]
        return tuple(dict.fromkeys((*self.openings, *self.ignorable, *self.closings, *single, self.quote)))


def mark_texts(text: str) -> list[str]:
    """The marks in a text, such as <tool_call> or [ARGS]."""
    return _MARK.findall(text)


def parts(text: str) -> list[tuple[str, str]]:
    """A description cut into ("", literal text) and (name, "") for each of its holes."""
    cut = _HOLE.split(text)
    return [("", piece) if at % 2 == 0 else (piece, "") for at, piece in enumerate(cut) if piece]


def pattern(text: str) -> str:
    """A description as a regular expression in which white space is of any length."""
    regex = "".join(_PATTERNS[hole] if hole else loose(literal) for hole, literal in parts(text))
    first, name, rest = regex.partition(_PATTERNS["name"])
    return first + name + rest.replace(_PATTERNS["name"], "(?P=name)")


def loose(literal: str) -> str:
    """The pattern of a text with any white space where it has some."""
    return r"\s*".join(map(re.escape, re.split(r"\s+", literal)))


def _shape(text: str, section: tuple[str, str]) -> CallShape:
    holes = [hole for hole, _ in parts(text)]
    plain: Style = "json" if re.search(r"\{\s*\"", text.partition("$name")[0]) else "named"
    styles: list[Style] = [_STYLES[hole] for hole in holes if hole in _STYLES]
    style = styles[0] if styles else plain
    before, after = _sides(text)
    if style in ("json", "python"):
        opening = _trimmed(section[0] + before.partition("{")[0] if style == "json" else section[0] + before)
        closing = _trimmed(after[after.rfind("}") + 1 :] if style == "json" else "") or _trimmed(section[1])
        return CallShape(text, style, opening, closing, re.compile(""))
    first = before.lstrip()
    mark = _MARK.match(first)
    opening = mark[0] if mark else first.split()[0] if first.split() else ""
    if mark and style == "tree":  # the mark of a namespace says little without the name of the element
        opening = first.split()[0]
    closings = mark_texts(after)
    closing = after.strip() if style == "tree" else closings[-1] if closings else ""
    arguments = re.compile(r"\$(?:arguments|pairs|gemma|tree)").split(text)[0]
    rest = arguments.lstrip()[len(opening) :]
    return CallShape(text, style, opening, closing, re.compile(r"\s*" + pattern(rest) + r"\s*"))


def _sides(text: str) -> tuple[str, str]:
    """What stands before the first hole, and behind the last."""
    holes = list(_HOLE.finditer(text))
    return text[: holes[0].start()], text[holes[-1].end() :]


def _trimmed(mark: str) -> str:
    """A mark without white space, and without the brackets of a list."""
    bare = mark.strip()
    whole = _MARK.search(bare)
    if bare.endswith("[") and not (whole and whole.end() == len(bare)) and (len(bare) == 1 or whole or "`" in bare):
        bare = bare[:-1].rstrip()
    if bare.startswith("]") and not bare.startswith("]<]"):
        bare = bare[1:].lstrip()
    return bare
