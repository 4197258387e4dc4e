"""What a text between two marks means, by the argument's schema."""

from __future__ import annotations

from typing import Any

import pytest

from embedllm.tools.notations.values import kinds, text_value
from embedllm.tools.stream_parser import CallReader
from tests.support.tool_formats import format_named


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        ({"type": "boolean"}, "True", True),  # as Qwen3-Coder's template writes it
        ({"type": "object"}, "{'a': None}", {"a": None}),  # and Seed-OSS's
        ({"type": "array"}, "not a list", "not a list"),  # the check of the arguments says what was expected
        ({"type": ["integer", "string"]}, "3", 3),
        ({"type": ["integer", "string"]}, "three", "three"),
        ({"type": ["integer", "string"]}, "[3]", "[3]"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '"a"', '"a"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": "string", "enum": ["a"], "nullable": True}, "null", None),
        ({"enum": ["1", 1]}, "1", "1"),
        ({"enum": ["a", 1]}, "1", 1),
        ({"$ref": "#/$defs/n"}, "3", 3),
        ({"$ref": "#/$defs/s"}, "3", "3"),
        ({"$ref": "#/$defs/loop"}, "3", 3),
        ({}, "3", 3),
        ({}, "True", "True"),
        (None, "text", "text"),
    ],
)
def test_a_text_means_what_the_schema_lets_it(schema: dict[str, Any] | None, text: str, value: object) -> None:
    root = {"$defs": {"n": {"type": "number"}, "s": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}}
    found = text_value(text, schema, root)
    assert (found, type(found)) == (value, type(value))


def test_what_a_schema_lets_in() -> None:
    assert kinds({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "integer"]}]}, {}) == {"null"}
    assert kinds({"const": 1}, {}) == {"number"}
    assert kinds({"type": "file"}, {}) == kinds(True, {})  # a type that JSON Schema does not know


def test_a_union_of_qwen3_coder_is_read_by_its_schema() -> None:
    either: dict[str, Any] = {"anyOf": [{"type": "number"}, {"type": "null"}]}
    schema: dict[str, Any] = {"properties": {"a": {"type": ["integer", "string"]}, "b": either}}
    arguments = "<parameter=a>\n3\n</parameter><parameter=b>\nnull\n</parameter>"
    reply = f"<tool_call><function=f>{arguments}</function></tool_call>"
    (call,) = CallReader(format_named("qwen3_coder"), {"f": schema}).push(reply).tool_calls
    assert call.arguments == {"a": 3, "b": None}
