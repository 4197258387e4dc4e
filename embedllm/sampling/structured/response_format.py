"""What a reply shall be, as callers say it (`response_format`), read into the source that a grammar is compiled from.

Standard library only. The twin of bindings_web/src/grammar/response_format.js.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import (
    TYPE_CHECKING,
    Literal,
    Protocol,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    runtime_checkable,
)

from embedllm.sampling.constraint import Constraint
from embedllm.sampling.structured.json_schema import closed
from embedllm.sampling.structured.regex_classes import python_classes
from embedllm.text.lone_surrogates import check_text
from embedllm.text.type_schema import TypeSchemas, from_json

if TYPE_CHECKING:
    from types import UnionType

    from embedllm.text.chat_template import JSON

Kind = Literal["json_schema", "regex", "choices", "lark"]


@runtime_checkable
class HasJSONSchema(Protocol):
    """A class of pydantic's, or what gives its JSON schema the same way."""

    def model_json_schema(self) -> dict[str, JSON]: ...


# OpenAI's object; llama.cpp's, {"type": "json_object", "schema": ...}; {"type": KIND, KIND: ...} for a regex, a Lark
# grammar or choices; or one of these, or a JSON schema, as it is.
# type, UnionType: what embedllm/text/type_schema.py has a schema of
ResponseFormat: TypeAlias = "Mapping[str, object] | HasJSONSchema | type | UnionType | re.Pattern[str] | Sequence[str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a grammar is compiled from."""

    kind: Kind
    text: str  # of the schema as JSON, of the regex, of the list of choices as JSON, of the grammar


class Grammars(Protocol):
    """Makes the constraints of one model's replies."""

    def constraint(self, source: Source, stop_tokens: frozenset[int]) -> Constraint:
        """The constraint of one reply. Raises ValueError for a source that cannot be followed."""
        ...


_SHAPES = (
    '{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, {"type": "json_object"}, {"type": "text"}, '
    "a JSON schema as it is, "
    '{"type": "regex", "regex": ...}, {"type": "lark", "lark": ...}, {"type": "choices", "choices": [...]}, a pydantic '
    "class, a dataclass, a TypedDict, an Enum, another type of these, such as list[int], a compiled regex or a list of "
    "texts"
)
_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}
_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}  # of JSON
_OF_ANY_TYPE = {"$ref", "allOf", "anyOf", "const", "enum", "oneOf", "properties"}  # of a schema that names no type
_OF_SCHEMA = {"name", "description", "schema", "strict"}  # every schema is followed strictly


def grammar_source(response_format: ResponseFormat | None) -> Source | None:
    """What to compile; None where any text may be said.

    Raises ValueError for another shape.
    """
    if response_format is None:
        return None
    if isinstance(response_format, Mapping):
        return _of_object(response_format)
    if isinstance(response_format, type | HasJSONSchema) or get_origin(response_format) is not None:
        return _reply_type(response_format).source()
    if isinstance(response_format, re.Pattern):
        return _regex(response_format)
    if isinstance(response_format, Sequence) and not isinstance(response_format, str | bytes):
        return _choices(response_format)
    raise ValueError(f"response_format is {response_format!r}; expected {_SHAPES}.")


def read_reply(text: str, kind: object) -> object:
    """The object that a reply stands for, whose response_format was its type.

    Raises ValueError where it stands for none, and for a type that is no response_format.
    """
    return _reply_type(kind).read(text)


@dataclass(frozen=True, slots=True)
class _ReplyType:
    """A type as a response_format."""

    source: Callable[[], Source]
    read: Callable[[str], object]  # raises ValueError for a reply that stands for no value of the type


def _reply_type(hint: object) -> _ReplyType:
    """Raises ValueError, with the name of the type and its field, where it has no JSON schema."""
    if isinstance(hint, HasJSONSchema):
        read = getattr(hint, "model_validate_json", None) or partial(_refuse, "it has no 'model_validate_json'")
        return _ReplyType(lambda: _schema(closed(hint.model_json_schema())), read)
    if _has_pydantic_class(hint):
        return _pydantic_type(hint)
    types = TypeSchemas()
    schema = types.read(hint, f"response_format '{type_name(hint)}'")
    if (values := _values(hint)) is not None:
        return _ReplyType(lambda: _choices([*values]), partial(_value_of, values))
    if types.definitions:
        schema = {**schema, "$defs": types.definitions}
    return _ReplyType(lambda: _schema(schema), lambda text: from_json(json.loads(text), hint))


def _pydantic_type(hint: object) -> _ReplyType:
    from pydantic import PydanticUserError, TypeAdapter  # which has made a class of the type

    try:
        adapter = TypeAdapter(cast("type", hint))
        schema = closed(adapter.json_schema())
    except PydanticUserError as error:
        raise ValueError(
            f"response_format '{type_name(hint)}': pydantic has no JSON schema of it ({error.message})."
        ) from error
    return _ReplyType(lambda: _schema(schema), adapter.validate_json)


def type_name(hint: object) -> str:
    """How messages call a type."""
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _has_pydantic_class(hint: object) -> bool:
    return hasattr(hint, "__pydantic_fields__") or any(map(_has_pydantic_class, get_args(hint)))


def _values(hint: object) -> dict[str, object] | None:
    """What a reply is chosen from, by its text; None for a type that lists no values."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {_value_text(member.value): member for member in hint}
    if get_origin(hint) is Literal:
        return {_value_text(value): value for value in get_args(hint)}
    return None


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _value_of(values: Mapping[str, object], text: str) -> object:
    if text not in values:
        raise ValueError(f"found {text!r}, expected one of {[*values]}")
    return values[text]


def _refuse(reason: str, _text: str) -> object:
    raise ValueError(reason)


def _of_object(fields: Mapping[str, object]) -> Source | None:
    kind = fields.get("type")
    if _is_schema(fields):
        return _schema(fields)
    if kind not in ("text", "json_object", "json_schema", "regex", "lark", "choices"):
        raise ValueError(f"response_format has the type {kind!r}; expected {_SHAPES}.")
    own_key = {"text": "type", "json_object": "schema"}.get(kind, kind)
    _check_keys("response_format", fields, {"type", own_key})
    value = fields.get(own_key)
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(fields.get("schema", {"type": "object"}))
    if kind == "json_schema":
        if not isinstance(value, Mapping) or "schema" not in value:
            raise ValueError(f"response_format has no json_schema.schema; expected {_SHAPES.partition(', {')[0]}.")
        _check_keys("response_format.json_schema", value, _OF_SCHEMA)
        return _schema(value["schema"])
    if kind == "choices":
        return _choices(value)
    if not isinstance(value, str):
        raise ValueError(f"response_format.{kind} is {value!r}; expected a text.")
    check_text(value, f"response_format.{kind}")
    return Source(kind=kind, text=value)


def _is_schema(fields: Mapping[str, object]) -> bool:
    """Whether an object is a JSON schema as it is. No type of JSON has the name of a form of response_format."""
    kind = fields.get("type")
    if kind is None:
        return not _OF_ANY_TYPE.isdisjoint(fields)
    return isinstance(kind, list) or (isinstance(kind, str) and kind in _TYPES)


def _check_keys(name: str, fields: Mapping[str, object], expected_keys: set[str]) -> None:
    if unknown := [key for key in fields if key not in expected_keys]:
        raise ValueError(
            f"{name} has {unknown[0]!r}, which is not followed; expected {', '.join(sorted(expected_keys))}."
        )


def _schema(schema: object) -> Source:
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the JSON schema is no JSON: {error}.") from error
    check_text(text, "the JSON schema")
    return Source(kind="json_schema", text=text)


def _regex(pattern: re.Pattern[str]) -> Source:
    if not isinstance(pattern.pattern, str):
        raise ValueError(f"response_format is the bytes pattern {pattern.pattern!r}; expected one of text.")
    if odd := re.RegexFlag(pattern.flags & ~re.UNICODE & ~sum(_FLAGS)):
        raise ValueError(
            f"the regex has {odd!r}, which is not followed; expected IGNORECASE, MULTILINE, DOTALL, VERBOSE."
        )
    letters = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
    check_text(pattern.pattern, "the regex")
    text = python_classes(pattern.pattern, verbose=bool(pattern.flags & re.VERBOSE))
    return Source(kind="regex", text=f"(?{letters}){text}" if letters else text)


def _choices(choices: object) -> Source:
    is_list = isinstance(choices, Sequence) and not isinstance(choices, str | bytes)
    texts = cast("Sequence[object]", choices) if is_list else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"choices is {choices!r}; expected a list of one text or more, none of them empty.")
    for text in cast("Sequence[str]", texts):
        check_text(text, "one of the choices")
    return Source(kind="choices", text=json.dumps([*texts], ensure_ascii=False))
