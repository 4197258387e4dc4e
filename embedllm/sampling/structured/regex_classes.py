"""Character classes of ECMAScript's and Python's regexes, written as the grammar engine's, which are Rust's.

In Rust's a class may hold another one, as in "[[:alpha:]]", and "&&", "--", "~~" are operators. In ECMAScript, whose
regexes JSON schemas have, and in Python's all of these are characters. Standard library only.
Source: ECMA-262 (2025), 22.2.1, without the flag v; docs.rs/regex-syntax 0.8, "Character classes".
"""

from __future__ import annotations

import re

_UNIT = re.compile(r"\\[\s\S]?|[\s\S]")  # of what follows a backslash only the first letter can be misread
_SPECIAL = re.compile(r"[\[\]&~^-]")
_SPECIAL_VERBOSE = re.compile(r"[\[\]&~^#\s-]")  # Python's re.VERBOSE leaves blanks in classes, Rust's (?x) does not
_COMMENT = re.compile("#[^\n]*")
_BACKSPACE = {r"\b": r"\x08"}  # in a class only
_SETS = frozenset(rf"\{letter}" for letter in "dDwWsSpP")


def ecma_classes(pattern: str) -> str:
    """A pattern of a JSON schema. "[]" matches nothing and "[^]" anything, as ECMAScript has them."""
    return _rewritten(pattern, has_empty=True)


def python_classes(pattern: str, *, verbose: bool) -> str:
    """A pattern of Python's `re`, where a "]" that comes first in a class is a character, as in Rust."""
    return _rewritten(pattern, has_empty=False, verbose=verbose)


def _rewritten(pattern: str, *, has_empty: bool, verbose: bool = False) -> str:
    pieces: list[str] = []
    at = 0
    while unit := (verbose and _COMMENT.match(pattern, at)) or _UNIT.match(pattern, at):
        text, at = unit[0], unit.end()
        if text == "[":
            text, at = _class(pattern, at, has_empty=has_empty, verbose=verbose)
        pieces.append(text)
    return "".join(pieces)


def _class(pattern: str, start: int, *, has_empty: bool, verbose: bool) -> tuple[str, int]:
    """A class, of what follows its bracket, and where it ends. One without an end stays: the engine refuses it."""
    special = _SPECIAL_VERBOSE if verbose else _SPECIAL
    is_negated = pattern.startswith("^", start)
    first = at = start + is_negated
    members: list[str] = []
    begins_range = False  # the last member may be the first character of a range
    while unit := _UNIT.match(pattern, at):
        text, at = unit[0], unit.end()
        if text == "]" and (has_empty or unit.start() > first):
            if not members:
                return "[\\s\\S]" if is_negated else "[^\\s\\S]", at
            return f"[{'^' * is_negated}{''.join(members)}]", at
        if text == "-" and begins_range and not pattern.startswith("]", at):
            members.append(text)
            begins_range = False
            continue
        is_end = members[-1:] == ["-"]  # of a range
        members.append(f"\\{text}" if special.fullmatch(text) else _BACKSPACE.get(text, text))
        begins_range = not is_end and text not in _SETS
    return pattern[start - 1 :], len(pattern)
