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
        "either": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    },
    "required": ["text"],
}


@pytest.mark.parametrize(
    "more",
    [{}, {"count": 4}, {"count": 2.0}, {"size": 1.5}, {"size": True}, {"kind": "b"}, {"maybe": None}, {"items": [1]},
     {"pair": ["a", 1, None]}, {"inner": {"a": "x", "b": 1}}, {"either": []}],
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
        ({"items": [1, "x"]}, r"'items'\[1\] is \"x\""),
        ({"pair": [1, 1]}, r"'pair'\[0\] is 1"),
        ({"inner": {}}, "'inner.a' is missing"),
        ({"either": 1}, "one of"),
        ({"other": 1}, "there is no argument 'other'; expected text, count"),
    ],
)
def test_what_it_does_not_describe_is_refused_by_name(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_arguments({"text": "abc", **more}, SCHEMA)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ValueError, match="the argument 'text' is missing"):
        check_arguments({}, SCHEMA)
