"""The value of an argument that stands as plain text between two marks, by the schema of the argument."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from embedllm.types import JSON

TYPES = ("string", "number", "boolean", "null", "array", "object")  # an integer is a number
_ALL = frozenset(TYPES)
_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_DEEPEST = 32  # references to references


def type_name(value: JSON) -> str:
    """The JSON type of a value."""
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "null" if value is None else "array" if isinstance(value, list | tuple) else "object"


def kinds(schema: object, root: Mapping[str, JSON], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema lets in. root: what its references begin at."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return _ALL
    types = _ALL
    if isinstance(reference := schema.get("$ref"), str):
        types &= kinds(referred(reference, root), root, depth + 1)
    if "enum" in schema and isinstance(schema["enum"], list):
        types &= {type_name(value) for value in schema["enum"]}
    if "const" in schema:
        types &= {type_name(cast("Any", schema["const"]))}
    stated = schema.get("type")
    names = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
    stated_types = {"number" if name == "integer" else name for name in names} & _ALL
    if stated_types:
        types &= stated_types
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            types &= frozenset().union(*(kinds(one, root, depth + 1) for one in cast("list[JSON]", schema[keyword])))
    for one in cast("list[JSON]", schema.get("allOf") or []):
        types &= kinds(one, root, depth + 1)
    return types | ({"null"} if schema.get("nullable") is True else set())


def referred(reference: str, root: Mapping[str, JSON]) -> JSON:
    """What a reference within a schema refers to; None where it is not there."""
    target: JSON = cast("JSON", root)
    for step in reference.removeprefix("#").strip("/").split("/") if reference != "#" else []:
        key = step.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target


def text_value(text: str, schema: object, root: Mapping[str, JSON]) -> JSON:
    """What a text means: itself where the schema wants a text, else JSON, or a literal as in Python.

    What is neither stays a text; the check of the arguments says what was expected.
    """
    allowed = kinds(schema, root)
    if allowed == {"string"} or (isinstance(schema, Mapping) and text in (schema.get("enum") or ())):
        return text
    try:
        value = parse_json(text.strip())
    except ValueError:
        if allowed == _ALL:
            return text
        try:
            value = python_value(ast.parse(text.strip(), mode="eval").body)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return text
    if "string" in allowed and (isinstance(value, str) or type_name(value) not in allowed):
        return text
    return value


def typed_value(value: JSON, name: str, parameters: Mapping[str, JSON]) -> JSON:
    """The value of an argument, also where a number was written as a text."""
    properties = parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    if not isinstance(value, str) or "string" in kinds(schema, parameters):
        return value
    return text_value(value, schema, parameters)


def python_value(node: ast.expr) -> JSON:
    """The value of a literal of Python, or of JSON's names for True, False and None. Raises ValueError for another."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [python_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        names = [None if key is None else python_value(key) for key in node.keys]
        if not all(isinstance(name, str) for name in names):
            raise ValueError("an object with a name that is no text")
        return unique([(cast("str", name), python_value(item)) for name, item in zip(names, node.values, strict=True)])
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise ValueError(f"no literal: {ast.unparse(node)[:80]}") from error
    if (value is not None and not isinstance(value, str | int | float)) or value in (math.inf, -math.inf):
        raise ValueError(f"nothing that JSON can hold: {ast.unparse(node)[:80]}")
    return value


def parse_json(text: str) -> JSON:
    """A JSON value and nothing more. Raises ValueError, saying what is wrong."""
    value, end = json_at(text, 0)
    if text[end:].strip():
        raise ValueError(f"after the value comes {text[end:].strip()[:80]!r}")
    return value


def json_at(text: str, at: int) -> tuple[JSON, int]:
    """The JSON value that begins at a place, and where it ends."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from error


def unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    """An object; json.loads alone would keep the last of two equal keys, and run something else than was said."""
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"'{twice}' is there twice")
    return dict(pairs)


def is_quoted(text: str) -> bool:
    """Whether a text in double quotes is open at the end."""
    return sum(quote == '"' for quote in _QUOTE.findall(text)) % 2 == 1


def _no_json(value: str) -> NoReturn:
    raise ValueError(f"{value} is no value of JSON")


def _finite(number: str) -> float:
    """A number with a point or an exponent; one too large for a float would be written as Infinity."""
    return _no_json(number) if math.isinf(value := float(number)) else value


_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=_no_json, parse_float=_finite)
