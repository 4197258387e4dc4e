"""Of a Lark grammar each rule ends, and the JSON schemas in it are those that are followed."""

from __future__ import annotations

import pytest

from embedllm.sampling.structured.lark import followed_lark


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start',
        'start: start "a"',
        'start: "x" | a\na: b\nb: "y" a',
        "start: a+\na: (b | a)\nb: a",
        'start: "x" a ~ 2\na: "b" a',
        'start[max_tokens=3]: "x" other\n\n// a comment: with a colon\nother:\n    "y" other\n  | "z" other',
        "%import common.INT\nstart: INT start",
    ],
)
def test_a_rule_that_demands_itself_is_refused_by_name(grammar: str) -> None:
    with pytest.raises(ValueError, match=r"the rule '(start|a|b|other)' of the Lark grammar never comes to an end"):
        followed_lark(grammar, options={})


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start | "b"',
        'start: "a" start?',
        'start: list\nlist: item | list "," item\nitem: /[a-z]+/ | "(" list ")"',
        'start: "a" (start)*',
        'start: "a" [start]',
        'start: "a" start{0,2}',
        'start: "a" start ~ 0..3',
        'start: a |\na: /x: [|]/ "a: a"',
        'start: <|tool|> ARGS\nARGS.2: /[0-9]+/ // start: start\n%ignore " "',
        'start: p::0x0\np::_: "a" p::incr(_) %if lt(_, 3) | "b"',
        '!start: ?a -> name\n?a: "x"',
        "start: INT\n%import common.INT",
    ],
)
def test_other_grammars_stay_as_they_are(grammar: str) -> None:
    assert followed_lark(grammar, options={}) == grammar


def test_schemas_in_it_are_followed() -> None:
    found = followed_lark('start: a | %json {\n"title": "{", "type": "null"} "x" \na: "b"', options={"k": "v"})
    assert found == 'start: a | %json {"type": "null", "x-guidance": {"k": "v"}} "x" \na: "b"'
    with pytest.raises(ValueError, match="'not' at # is not supported"):
        followed_lark('start: %json {"not": {}}', options={})
    with pytest.raises(ValueError, match="line 2 of the Lark grammar has no JSON where it begins"):
        followed_lark('a: "b"\nstart: %json {"not": ', options={})
