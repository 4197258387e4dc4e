"""Of a JSON schema every keyword is followed or refused by name, and what has no end is taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from embedllm.sampling.structured.json_schema import DEEPEST, closed, followed

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}  # has no end


def test_annotations_are_left_out_and_the_rest_stays_in_its_order() -> None:
    schema: Any = {
        "title": "T",
        "type": "object",
        "x-order": 1,
        "properties": {"title": {"type": "string", "default": ""}},
    }
    found = followed(schema)
    assert found == {"type": "object", "properties": {"title": {"type": "string"}}}
    assert list(found) == ["type", "properties"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"uniqueItems": True}, "'uniqueItems' at # is not supported"),
        ({"properties": {"a": {"not": {}}}}, "'not' at #/properties/a is not supported"),
        ({"anyOf": [True, {"foo": 1}]}, "'foo' at #/anyOf/1 is not supported"),
        ({"items": [{}]}, "'items' at # is a list.*'prefixItems'"),
        ({"anyOf": {}}, "'anyOf' at # is {}; expected a list"),
        ({"properties": []}, r"'properties' at # is \[\]; expected an object"),
        ({"$ref": "https://example.org/x"}, r"'\$ref' at # is 'https://example.org/x'; expected '#'"),
        ({"$ref": "#/$defs/a"}, r"'\$ref' at # is '#/\$defs/a', which is not there"),
        ({"properties": {"a": 5}}, "#/properties/a is 5; expected an object, true or false"),
        ({"minProperties": 2}, "'minProperties' at # is 2; with 0 properties in 'required' it can be 1 at most"),
        (False, "no finite value fulfils it"),
        ({"$ref": "#"}, "no finite value fulfils it"),
        ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, "no finite value fulfils it"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no finite value fulfils it"),
        ({"allOf": [{"type": "string"}, {"$ref": "#"}]}, "no finite value fulfils it"),
    ],
)
def test_what_is_not_followed_is_refused_by_name_and_place(schema: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        followed(schema)


def test_a_keyword_that_demands_nothing_is_left_out() -> None:
    """uniqueItems is false by default; descriptions of HTTP APIs write it out."""
    assert followed({"type": "array", "uniqueItems": False}) == {"type": "array"}


def kind(value: object, **properties: object) -> dict[str, Any]:
    """An object as pydantic describes the classes of a discriminated union."""
    return {"type": "object", "properties": {"kind": {"const": value}, **properties}, "required": ["kind"]}


@pytest.mark.parametrize(
    ("one", "other", "are_apart"),
    [
        (kind("a"), kind("b"), True),
        (kind("a"), kind("a"), False),
        (kind("a"), {**kind("b"), "required": []}, False),
        (kind("a"), {**kind("b"), "type": ["object", "null"]}, True),
        ({**kind("a"), "type": ["object", "null"]}, {**kind("b"), "type": ["object", "null"]}, False),
        (kind("a"), {**kind("b"), "properties": {"kind": {"$ref": "#/$defs/b"}}}, True),
        ({"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, kind("b"), False),  # a number fulfils it
        ({"type": "integer"}, {"type": "number"}, False),
        ({"type": "integer"}, {"type": ["string", "null"]}, True),
        ({"enum": [1, 2]}, {"enum": [3]}, True),
        ({"enum": [1, 2]}, {"const": 2.0}, False),
        ({}, False, True),
        ({"type": "string"}, True, False),
        ({"$ref": "#/$defs/one"}, {"type": "string"}, False),  # which leads back to itself
    ],
)
def test_one_of_what_excludes_each_other_is_any_of_it(one: Any, other: Any, are_apart: bool) -> None:  # noqa: ANN401
    parts = [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}]
    found = followed({"oneOf": parts, "$defs": {"one": one, "other": other, "b": {"enum": ["b", "c"]}}})
    assert isinstance(found, dict)
    assert ("anyOf" in found, "oneOf" in found) == (are_apart, not are_apart)


def test_a_union_may_contain_itself() -> None:
    union: Any = {"oneOf": [{"$ref": "#/$defs/number"}, {"$ref": "#/$defs/sum"}]}
    defined = {"number": kind("number"), "sum": kind("sum", left={"$ref": "#"}, right={"$ref": "#"})}
    found = followed({**union, "$defs": defined})
    assert isinstance(found, dict)
    assert "oneOf" not in found


def test_a_schema_that_may_stop_containing_itself_stays_as_it_is() -> None:
    schema: Any = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}}
    assert followed(schema) == schema
    either: Any = {"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}, {"type": "null"}]}
    assert followed(either) == either


def test_a_part_without_an_end_becomes_false() -> None:
    schema: Any = {
        "$defs": {"node": NODE},
        "type": "object",
        "properties": {"a": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "b": {"$ref": "#/$defs/node"}},
        "required": ["a"],
    }
    assert followed(schema) == {
        "type": "object",
        "properties": {"a": {"anyOf": [False, {"type": "null"}]}, "b": False},
        "required": ["a"],
        "$defs": {"0": False},
    }


def test_only_what_is_referred_to_is_read() -> None:
    schema: Any = {"$defs": {"a/b": {"type": "null"}, "odd": {"not": {}}}, "$ref": "#/$defs/a~1b"}
    assert followed(schema) == {"$ref": "#/$defs/0", "$defs": {"0": {"type": "null"}}}
    assert followed({"properties": {"a": {"type": "null"}, "b": {"$ref": "#/properties/a"}}}) == {
        "properties": {"a": {"type": "null"}, "b": {"$ref": "#/$defs/0"}},
        "$defs": {"0": {"type": "null"}},
    }


def test_schemas_that_lie_too_deep_are_refused() -> None:
    schema: Any = {"type": "null"}
    for _ in range(DEEPEST + 1):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ValueError, match=f"expected at most {DEEPEST}"):
        followed(schema)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer", "nullable": True}, {"type": ["integer", "null"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        (
            {"type": "string", "enum": ["a"], "nullable": True},
            {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
        ),
        ({"nullable": True}, {}),
        ({"const": None, "items": None}, {"const": None}),
        ({"properties": {"nullable": {"properties": {}}}}, {
            "additionalProperties": False,
            "properties": {"nullable": {"additionalProperties": False, "properties": {}}},
        }),
    ],
)  # fmt: skip
def test_a_closed_schema_has_no_other_properties_and_null_as_a_choice(schema: Any, expected: Any) -> None:  # noqa: ANN401 # JSON
    assert closed(schema) == expected
