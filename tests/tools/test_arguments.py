"""Arguments of a call against the schema of its tool."""

from __future__ import annotations

from typing import Any

import pytest

from embedllm.tools.arguments import check_arguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 3},
        "count": {"type": "integer", "minimum": 1, "exclusiveMaximum": 5},
        "size": {"type": ["number", "boolean"]},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "maybe": {"type": "integer", "nullable": True},
        "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        "inner": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/row"}},
        "word": {"type": "string", "pattern": "^a"},
        "closed": False,
        "both": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "loose": {"type": "any"},
        "either": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    },
    "required": ["text"],
    "$defs": {"row": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
}


@pytest.mark.parametrize(
    "more",
    [{}, {"count": 4}, {"count": 2.0}, {"size": 1.5}, {"size": True}, {"kind": "b"}, {"maybe": None}, {"items": [1]},
     {"pair": ["a", 1, None]}, {"inner": {"a": "x", "b": 1}}, {"either": []}, {"list": [{"a": "x"}]},
     {"loose": 1}, {"both": 1.5}],
)  # fmt: skip
def test_what_the_schema_describes_is_taken(more: dict[str, Any]) -> None:
    check_arguments({"text": "abc", **more}, SCHEMA)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"text": "abcd"}, "'text' is \"abcd\""),
        ({"text": None}, "expected string"),
        ({"count": 0}, "'count' is 0"),
        ({"count": 5}, "exclusiveMaximum"),
        ({"count": True}, "expected integer"),
        ({"count": 1.5}, "expected integer"),
        ({"size": "1"}, "expected number or boolean"),
        ({"kind": "c"}, 'one of "a", "b"'),
        ({"maybe": "x"}, "expected integer"),
        ({"items": []}, "minItems"),
        ({"items": [1, "x"]}, r"'items\[1\]' is \"x\""),
        ({"pair": [1, 1]}, r"'pair\[0\]' is 1"),
        ({"inner": {}}, "'inner.a' is missing"),
        ({"either": 1}, "one of"),
        ({"list": [{"a": 1}]}, r"'list\[0\].a' is 1, expected string"),
        ({"list": [{"b": 1}]}, r"'list\[0\].a' is missing"),
        ({"word": "b"}, r'\'word\' is "b", expected \{"pattern": "\^a"\}'),
        ({"closed": 1}, "the argument 'closed' is 1, expected none"),
        ({"both": 7}, "'both' is 7, expected exactly one of"),
        ({"other": 1}, "there is no argument 'other'; expected text, count"),
    ],
)
def test_what_it_does_not_describe_is_refused_by_name(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_arguments({"text": "abc", **more}, SCHEMA)


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": None},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"b": {}}, "additionalProperties": True},
        {"type": "object", "properties": {"b": {}}, "additionalProperties": {"type": "integer"}},
        {"$ref": "#/$defs/row", "$defs": {"row": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
        {"type": "object", "anyOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["b"]}]},
        {"properties": {"b": {}}, "allOf": [{"properties": {"a": {"type": "integer"}}}]},
    ],
)
def test_a_schema_that_does_not_list_all_arguments_takes_others(parameters: dict[str, Any]) -> None:
    check_arguments({"a": 1}, parameters)


@pytest.mark.parametrize("parameters", [{}, {"type": "object", "properties": {}}, {"properties": {"b": {}}},
                                        {"type": "object", "additionalProperties": False}])  # fmt: skip
def test_a_schema_that_lists_its_arguments_takes_no_others(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="there is no argument 'a'"):
        check_arguments({"a": 1}, parameters)


def test_a_keyword_that_is_null_is_no_restriction() -> None:
    check_arguments({}, {"type": "object", "properties": None, "required": None})
    inner = {"type": "object", "properties": None, "required": None}
    check_arguments({"a": {"b": 1}}, {"properties": {"a": inner}, "required": None})
    with pytest.raises(ValueError, match="'a' is 1, expected null"):
        check_arguments({"a": 1}, {"properties": {"a": {"const": None}}})


def test_what_is_wrong_with_all_arguments_together_names_none() -> None:
    with pytest.raises(ValueError, match=r"the arguments are \{\}, expected \{\"minProperties\": 1\}"):
        check_arguments({}, {"minProperties": 1})
    patterns: dict[str, Any] = {"properties": {}, "patternProperties": {"^p": {}}}
    with pytest.raises(ValueError, match="there is no argument 'y'"):
        check_arguments({"p1": 1, "y": 2}, patterns)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ValueError, match="the argument 'text' is missing"):
        check_arguments({}, SCHEMA)


@pytest.mark.parametrize(
    "broken",
    [{"minimum": "1"}, {"pattern": "("}, {"$ref": "#/$defs/none"}, {"$ref": "https://example.com/a.json"},
     {"anyOf": 3}],
)  # fmt: skip
def test_a_malformed_schema_is_named_and_nothing_is_fetched(broken: dict[str, Any]) -> None:
    value = "x" if "pattern" in broken else 1
    with pytest.raises(ValueError, match="the tool's schema cannot be applied"):
        check_arguments({"a": value}, {"properties": {"a": broken}})


def test_the_draft_that_the_schema_names_is_followed() -> None:
    older = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"items": [{"type": "string"}]}}}
    check_arguments({"a": ["x", 1]}, older)
    with pytest.raises(ValueError, match=r"'a\[0\]' is 1, expected string"):
        check_arguments({"a": [1]}, older)
