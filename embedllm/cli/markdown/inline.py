"""Inline marks of Markdown as styles of a terminal.

Replies hold commands and code outside of code blocks, too, so a mark is only left out where it cannot be part of one:
`**bold**` loses its marks, and links their brackets; `code` and *emphasis* keep them. What does not close is text.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import NamedTuple

BOLD, DIM, ITALIC, UNDERLINE, CYAN = "1", "2", "3", "4", "36"  # SGR: ECMA-48, 8.3.117

_LONGEST = 400  # characters that are held back for the end of a mark
_PLAIN = re.compile(r"[^*`\[\\]+")
_OPENS = re.compile(r"[\w\"'`(\u201c\u2018<$]")  # behind a mark that opens; not "*.py"
_LINK = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
_BEGUN_LINK = re.compile(r"\[[^\[\]]*(\](\([^()\s]*)?)?$")


class Atom(NamedTuple):
    """Text that is shown in one style: SGR parameters, empty for none."""

    text: str
    style: str


def atoms(text: str, before: str, *, is_final: bool, style: str = "", colours: bool = True) -> tuple[list[Atom], str]:
    """The text as atoms, and its end that has to wait for more of the line.

    before: the character before the text, empty at the start of a line. is_final: the line ends here; nothing waits.
    style: of what has no marks.
    """
    line_atoms: list[Atom] = []
    at = 0
    while at < len(text):
        if plain := _PLAIN.match(text, at):
            line_atoms.append(Atom(plain[0], style))
            at = plain.end()
            continue
        rest = text[at:]
        may_wait = not is_final and len(rest) < _LONGEST
        parsed = _parse(rest, text[at - 1] if at else before, style=style, colours=colours, may_wait=may_wait)
        if parsed is None:
            return line_atoms, rest
        added, length = parsed
        line_atoms += added
        at += length
    return line_atoms, ""


def ansi(line_atoms: list[Atom]) -> str:
    """The atoms with their escape sequences."""
    parts = groupby(line_atoms, key=lambda one: one.style)
    return "".join(styled("".join(one.text for one in same), style) for style, same in parts)


def styled(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


def _parse(rest: str, before: str, *, style: str, colours: bool, may_wait: bool) -> tuple[list[Atom], int] | None:
    """What a text that begins with a mark gives, and how much of it was read; None: it has to wait."""
    if rest[0] == "\\":
        return None if len(rest) == 1 and may_wait else ([Atom(rest[:2], style)], len(rest[:2]))
    if rest[0] == "[":
        if link := _LINK.match(rest):
            return [Atom(link[1], _joined(style, UNDERLINE)), Atom(f" ({link[2]})", _joined(style, DIM))], link.end()
        return None if may_wait and _BEGUN_LINK.fullmatch(rest) else ([Atom("[", style)], 1)
    run = re.match(r"`+|\*+", rest)
    assert run is not None
    mark = run[0]
    if len(mark) == len(rest) and may_wait:
        return None
    end = _end_of(rest, mark, before)
    if end is not None and end < 0:
        return None if may_wait else ([Atom(mark, style)], len(mark))
    if end is None:
        return [Atom(mark, style)], len(mark)
    if mark[0] == "`":
        return [Atom(rest[:end], _joined(style, CYAN if colours else ""))], end
    inside, added = (mark, ITALIC) if len(mark) == 1 else ("", BOLD if len(mark) == 2 else f"{BOLD};{ITALIC}")
    text = inside + rest[len(mark) : end - len(mark)] + inside
    if inside:
        return [Atom(text, _joined(style, added))], end
    return atoms(text, " ", is_final=True, style=_joined(style, added), colours=colours)[0], end


def _end_of(rest: str, mark: str, before: str) -> int | None:
    """Behind the mark that closes what the first one opens; -1: not yet there; None: it opens nothing."""
    if mark[0] == "`":
        close = re.compile(rf"(?<!`){mark}(?!`)").search(rest, len(mark))
        return close.end() if close else -1
    if len(mark) > 3 or before.isalnum() or not _OPENS.match(rest, len(mark)):
        return None
    after = r"(?![\w*])" if len(mark) == 1 else r"(?!\*)"
    close = re.compile(rf"(?<=[^\s*])\*{{{len(mark)}}}{after}").search(rest, len(mark))
    return close.end() if close else -1


def _joined(style: str, added: str) -> str:
    return ";".join(filter(None, (style, added)))
