"""Lark grammars as the grammar engine shall have them: every rule ends, and JSON schemas in them are followed.

Standard library only. The engine itself writes on without end in a rule that demands itself. Read more loosely than the
engine does: what it would refuse is left to it. Source of the lexemes: llguidance 1.8, parser/src/lark/lexer.rs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from embedllm.sampling.structured.json_schema import followed

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON

_LEXEME = re.compile(
    r"""(?P<skip>(?:\#|//)[^\n]*|[ \t]+)|(?P<line>(?:\r?\n[ \t]*)+)|(?P<name>!?[_?]?[A-Za-z][\w\-]*)
    |(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[imslux]*|<[^<>\s]+>|@[\w\-]+)|(?P<block>%(?:json|regex|lark)\s*)(?=\{)
    |(?P<command>%\w+)|(?P<op>::|->|\.\.|[-+]?\w+|.)""",
    re.VERBOSE,
)
_VALUE = "\0"  # stands for what is no rule: texts, patterns, special tokens, schemas
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def followed_lark(grammar: str, *, options: Mapping[str, JSON]) -> str:
    """The grammar with each JSON schema in it as `followed` gives it.

    options: of the engine, for those schemas.
    Raises ValueError for a rule that never comes to an end.
    """
    text, lexemes = _read(grammar, options)
    rules = _rules(lexemes)
    finite: set[str] = set()
    while added := {name for name, body in rules.items() if name not in finite and _Body(body, rules, finite).ends()}:
        finite |= added
    if endless := [name for name in rules if name not in finite]:
        raise ValueError(
            f"the rule '{endless[0]}' of the Lark grammar never comes to an end: it demands itself again and again. "
            f"Add an alternative without it, such as '{endless[0]}: item | item {endless[0]}'."
        )
    return text


def _read(grammar: str, options: Mapping[str, JSON]) -> tuple[str, list[str]]:
    """The grammar with its schemas replaced, and its lexemes; "\n" where a line begins."""
    pieces: list[str] = []
    lexemes: list[str] = ["\n"]
    at = 0
    while match := _LEXEME.match(grammar, at):
        at = match.end()
        piece = match[0]
        if match.lastgroup == "block":
            value, at = _block(grammar, at)
            if piece.startswith("%json"):
                schema = followed(value)
                value = {**schema, "x-guidance": options} if isinstance(schema, dict) else schema
            piece += json.dumps(value)
        pieces.append(piece)
        if match.lastgroup in ("text", "block"):
            lexemes.append(_VALUE)
        elif match.lastgroup != "skip":
            lexemes.append("\n" if match.lastgroup == "line" else piece)
    return "".join(pieces), lexemes


def _block(grammar: str, at: int) -> tuple[JSON, int]:
    try:
        return json.JSONDecoder().raw_decode(grammar, at)
    except ValueError as error:
        line = grammar.count("\n", 0, at) + 1
        raise ValueError(f"line {line} of the Lark grammar has no JSON where it begins: {error}.") from None


def _rules(lexemes: Sequence[str]) -> dict[str, list[str]]:
    """The rules' bodies by their names, with nothing left in them that says only how a rule is used."""
    rules: dict[str, list[str]] = {}
    body: list[str] = []
    at = 0
    while at < len(lexemes):
        if lexemes[at] == "\n":
            at += 1
            name = lexemes[at] if at < len(lexemes) else ""
            if colon := _colon(lexemes, at):
                body = rules.setdefault(name.lstrip("!?"), [])
                at = colon + 1
            elif name.startswith("%"):
                body = []  # of a command; nobody reads it
            continue
        if lexemes[at] in ("->", "::", "%if"):
            at = _past_argument(lexemes, at + 1)
        else:
            body.append(lexemes[at])
            at += 1
    return rules


def _colon(lexemes: Sequence[str], at: int) -> int:
    """Where the colon of a definition stands that begins here; 0 when none does."""
    if at >= len(lexemes) or not re.fullmatch(r"!?[_?]?[A-Za-z][\w\-]*", lexemes[at]):
        return 0
    depth = 0
    for place in range(at + 1, len(lexemes)):
        lexeme = lexemes[place]
        depth += (lexeme in _CLOSING) - (lexeme in _CLOSING.values())
        if depth == 0 and lexeme == ":":
            return place
        if depth == 0 and lexeme in ("\n", "|", _VALUE):
            return 0
    return 0


def _past_argument(lexemes: Sequence[str], at: int) -> int:
    """Behind a name or number and what is in parentheses behind it."""
    if at < len(lexemes) and lexemes[at] not in _CLOSING:
        at += 1
    depth = 0
    while at < len(lexemes) and (depth or lexemes[at] == "("):
        depth += (lexemes[at] == "(") - (lexemes[at] == ")")
        at += 1
    return at


class _Body:
    """Reads a rule's body, to see whether some finite text fulfils it."""

    def __init__(self, lexemes: Sequence[str], rules: Mapping[str, object], finite: set[str]) -> None:
        self._lexemes = lexemes
        self._rules = rules
        self._finite = finite
        self._at = 0

    def ends(self) -> bool:
        """Whether one of the alternatives does, up to a closing parenthesis."""
        some, all_so_far = False, True
        while self._at < len(self._lexemes):
            lexeme = self._lexemes[self._at]
            self._at += 1
            if lexeme in _CLOSING.values():
                break
            if lexeme == "|":
                some, all_so_far = some or all_so_far, True
            elif lexeme in _CLOSING:
                inner = self.ends()
                all_so_far &= inner or lexeme == "[" or self._may_be_none()
            elif lexeme in self._rules:
                all_so_far &= lexeme in self._finite or self._may_be_none()
        return some or all_so_far

    def _may_be_none(self) -> bool:
        """Whether what follows says that there may be none of it."""
        rest = list(self._lexemes[self._at : self._at + 2])
        return rest[:1] in (["?"], ["*"]) or rest in (["{", "0"], ["{", ","], ["~", "0"])
