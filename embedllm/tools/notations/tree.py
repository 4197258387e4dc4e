"""Calls whose arguments are nested elements, each mark behind a namespace, as MiniMax M3 writes them.

A text stands as it is, an object's members are elements with their names, a list's are all <item>.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from embedllm.tools.calls import Parameters, ToolCall
from embedllm.tools.formats import CallShape, ToolFormat
from embedllm.tools.notations.values import kinds, referred, text_value, unique

if TYPE_CHECKING:
    from embedllm.types import JSON

ITEM = "item"
_DEEPEST = 100  # elements within elements


def read_tree(written: ToolFormat, shape: CallShape, body: str, parameters: Parameters) -> list[ToolCall]:
    """The call that a body is. Raises ValueError."""
    head = shape.head.match(body)
    if head is None:
        raise ValueError(f"expected it to be like {shape.text!r}")
    schema = parameters.get(head["name"], {})
    elements, rest = _elements(written.pair.partition("<$key>")[0], body, head.end(), 0)
    if body[rest:].strip():
        raise ValueError(f"expected {written.pair}, found {body[rest:].strip()[:80]!r}")
    return [ToolCall(id="", name=head["name"], arguments=_object(elements, schema, schema))]


class _Element:
    def __init__(self, name: str, text: str, inner: list[_Element]) -> None:
        self.name, self.text, self.inner = name, text, inner


def _elements(namespace: str, text: str, at: int, depth: int) -> tuple[list[_Element], int]:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    elements: list[_Element] = []
    opening = re.compile(r"\s*" + re.escape(namespace) + r"<([^<>/]+)>")
    while begun := opening.match(text, at):
        inner, end = _elements(namespace, text, begun.end(), depth + 1)
        closing = f"{namespace}</{begun[1]}>"
        at = text.find(closing, end)
        if at < 0 or (inner and text[end:at].strip()):
            raise ValueError(f"<{begun[1]}> is not closed")
        elements.append(_Element(begun[1], text[begun.end() : at], inner))
        at += len(closing)
    return elements, at


def _value(element: _Element, schema: object, root: Mapping[str, JSON]) -> JSON:
    allowed = kinds(schema, root)
    empty = not element.text.strip()
    if element.inner or (empty and "string" not in allowed):
        is_list = "array" in allowed and ("object" not in allowed or {one.name for one in element.inner} == {ITEM})
        if is_list:
            items = _part(schema, root, "items")
            return [_value(one, items, root) for one in element.inner]
        if element.inner or "object" in allowed:
            return _object(element.inner, schema, root)
        if "null" in allowed:
            return None
    return text_value(element.text, schema, root)


def _object(elements: list[_Element], schema: object, root: Mapping[str, JSON]) -> dict[str, JSON]:
    members = _part(schema, root, "properties")
    named = members if isinstance(members, Mapping) else {}
    other = _part(schema, root, "additionalProperties")
    return unique([(one.name, _value(one, named.get(one.name, other), root)) for one in elements])


def _part(schema: object, root: Mapping[str, JSON], keyword: str, depth: int = 0) -> JSON:
    """The value of a keyword, also where the schema refers to another one or has several to choose from."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    if keyword in schema:
        return schema[keyword]
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []
    further = [*cast("list[JSON]", choices), *([referred(str(schema["$ref"]), root)] if "$ref" in schema else [])]
    parts = (_part(one, root, keyword, depth + 1) for one in further)
    return next((part for part in parts if part is not None), None)
