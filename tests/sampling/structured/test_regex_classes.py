"""Character classes: what ECMAScript and Python read as characters, a grammar reads so, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

import embedllm
from embedllm.sampling.structured.llguidance import _compile, _vocabulary  # pyright: ignore[reportPrivateUsage]
from embedllm.sampling.structured.regex_classes import ecma_classes, python_classes
from embedllm.sampling.structured.response_format import ResponseFormat, grammar_source
from embedllm.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.open(Path(embedllm.__file__).parent / "demo")
VOCABULARY = _vocabulary(TOKENIZER)


def accepts(response_format: ResponseFormat, text: str) -> bool:
    source = grammar_source(response_format)
    assert source is not None
    matcher: LLMatcher = _compile(source, VOCABULARY)
    return all(map(matcher.consume_token, TOKENIZER.encode(text, special=False))) and matcher.is_accepting()


def schema(pattern: str) -> ResponseFormat:
    return {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": f"^(?:{pattern})$"}}}


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        ("[[:alpha:]]", ["a]", "[]", ":]"], ["a", "b]", "x"]),
        ("[[a]", ["[", "a"], ["]"]),
        ("[a&&b]", ["a", "b", "&"], ["&&"]),
        ("[a~~b]", ["a", "b", "~"], []),
        ("[+--]", ["+", ",", "-"], ["."]),
        ("[a-z-]", ["q", "-"], ["_"]),
        ("[a-c-[b]]", ["a]", "-]", "[]"], ["a", "b"]),
        (r"\[[a]\]", ["[a]"], ["a"]),
        ("[^[]", ["a", "]"], ["["]),
    ],
)
def test_a_pattern_of_a_schema_has_the_classes_of_ecmascript(
    pattern: str, accepted: list[str], refused: list[str]
) -> None:
    for text in accepted:
        assert accepts(schema(pattern), f'"{text}"'), text
    for text in refused:
        assert not accepts(schema(pattern), f'"{text}"'), text


def test_an_empty_class_is_ecmascripts() -> None:
    assert accepts(schema("[^]"), '"]"')
    assert accepts(schema("[^]"), '"a"')
    with pytest.raises(ValueError, match="cannot be followed"):
        accepts(schema("[]"), '"a"')


def test_names_of_pattern_properties_are_patterns() -> None:
    found: ResponseFormat = {
        "type": "json_schema",
        "json_schema": {
            "schema": {
                "type": "object",
                "patternProperties": {"^[[x]$": {"const": 1}},
                "additionalProperties": False,
            }
        },
    }
    assert accepts(found, '{"[":1}')
    assert not accepts(found, '{"y":1}')


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Python may give classes in classes a meaning some day
@pytest.mark.parametrize("flags", [0, re.VERBOSE])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_compiled_regex_accepts_what_python_does(data: st.DataObject, flags: int) -> None:
    members = data.draw(st.text("ab-[]^&~:# \\", min_size=1, max_size=6))
    try:
        pattern = re.compile(f"[{members}]x", flags)
    except re.error:
        return
    if not re.fullmatch(r"\[\^?\]?(\\.|[^\]\\])*\]x", pattern.pattern):
        return  # the class ends before the last bracket
    for text in ["ax", "bx", "-x", "[x", "]x", "^x", "&x", "~x", ":x", "#x", " x", "\\x", "\bx", "cx"]:
        assert accepts(pattern, text) == bool(pattern.fullmatch(text)), (members, text)


@given(st.text("ab-[]^&~\\d", max_size=12))
def test_a_rewritten_class_is_not_rewritten_again(pattern: str) -> None:
    once = ecma_classes(pattern)
    assert ecma_classes(once) == once
    twice = python_classes(pattern, verbose=False)
    assert python_classes(twice, verbose=False) == twice
