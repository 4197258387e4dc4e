"""Whether the arguments of a tool call are what the tool's schema asks for.

Checked are: type (with "nullable"), enum, const, anyOf, oneOf (as anyOf), properties, required, additionalProperties,
items, prefixItems, and the bounds of numbers, texts and lists. Other keywords are left to the tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def check_arguments(arguments: Mapping[str, JSON], parameters: Mapping[str, JSON]) -> None:
    """Raises ValueError, naming the argument and what is expected, unless the arguments are those of the schema.

    parameters: the "parameters" of a tool's schema. An argument that it does not name is refused, unless
    "additionalProperties" lets it in.
    """
    _check_object(dict(arguments), {"additionalProperties": False, **parameters}, "")


def _check(value: JSON, schema: JSON, where: str) -> None:
    if not isinstance(schema, Mapping):
        if schema is False:
            raise ValueError(f"{where} is not allowed.")
        return
    if value is None and schema.get("nullable") is True:
        return
    _check_type(value, schema, where)
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list) and not any(_is(value, option, where) for option in options):
            raise ValueError(f"{where} is {_shown(value)}, expected one of {_shown(options)}.")
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and not any(_is_same(value, choice) for choice in choices):
        raise ValueError(f"{where} is {_shown(value)}, expected {'one of ' if len(choices) > 1 else ''}"
                         f"{', '.join(map(_shown, choices))}.")  # fmt: skip
    _check_bounds(value, schema, where)
    if isinstance(value, dict):
        _check_object(value, schema, where)
    elif isinstance(value, list):
        _check_items(value, schema, where)


def _check_type(value: JSON, schema: Mapping[str, JSON], where: str) -> None:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    known = [name for name in kinds if isinstance(name, str) and name in _TYPES]
    if known and not any(_has_type(value, name) for name in known):
        raise ValueError(f"{where} is {_shown(value)}, expected {' or '.join(known)}.")


def _has_type(value: JSON, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _check_bounds(value: JSON, schema: Mapping[str, JSON], where: str) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        size: float = value
        names = ("minimum", "maximum")
    elif isinstance(value, str | list):
        size = len(value)
        names = ("minLength", "maxLength") if isinstance(value, str) else ("minItems", "maxItems")
    else:
        return
    least, most = (schema.get(name) for name in names)
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    is_number = names[0] == "minimum"
    wrong = (
        (isinstance(least, int | float) and size < least)
        or (isinstance(most, int | float) and size > most)
        or (is_number and isinstance(above, int | float) and size <= above)
        or (is_number and isinstance(below, int | float) and size >= below)
    )
    if wrong:
        bounds = {name: schema[name] for name in (*names, "exclusiveMinimum", "exclusiveMaximum") if name in schema}
        raise ValueError(f"{where} is {_shown(value)}, expected {_shown(bounds)}.")


def _check_object(value: dict[str, JSON], schema: Mapping[str, JSON], where: str) -> None:
    properties, required = schema.get("properties"), schema.get("required")
    named = properties if isinstance(properties, Mapping) else {}
    for name in required if isinstance(required, list) else []:
        if name not in value:
            raise ValueError(f"the argument '{_path(where, str(name))}' is missing.")
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name not in named and others is False:
            raise ValueError(f"there is no argument '{_path(where, name)}'; expected {', '.join(named) or 'none'}.")
        _check(item, named.get(name, others), f"the argument '{_path(where, name)}'")


def _check_items(value: Sequence[JSON], schema: Mapping[str, JSON], where: str) -> None:
    first = schema.get("prefixItems")
    places = first if isinstance(first, list) else []
    for place, item in enumerate(value):
        _check(item, places[place] if place < len(places) else schema.get("items"), f"{where}[{place}]")


def _is(value: JSON, schema: JSON, where: str) -> bool:
    try:
        _check(value, schema, where)
    except ValueError:
        return False
    return True


def _is_same(value: JSON, other: JSON) -> bool:
    """JSON's equality: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _path(where: str, name: str) -> str:
    return f"{where.removeprefix('the argument ').strip(chr(39))}.{name}" if where else name


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}... ({len(text)} characters)"
