"""Whether the arguments of a tool call are valid under the tool's JSON Schema. The check is jsonschema's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

    from embedllm.text.chat_template import JSON

_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_BOUNDS = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)
_MOST_SHOWN = 100  # characters
_BESIDE_PROPERTIES = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")  # may name arguments
_NOTHING: dict[str, JSON] = {"not": {}}  # as "false"


def closed_arguments(parameters: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """A tool's schema without its nulls, which takes no arguments but those that it names, if it says what there are.

    It does not where "additionalProperties" lets others in, where there is no "properties", as with MCP tools that take
    any object, or where other keywords may name further ones. A tool without a schema takes no arguments.
    """
    schema = {name: rule for name, rule in parameters.items() if rule is not None}
    is_open = bool(schema) and "properties" not in schema
    if is_open or any(keyword in schema for keyword in _BESIDE_PROPERTIES):
        return schema
    return {"additionalProperties": False, **schema}


def check_arguments(arguments: Mapping[str, JSON], parameters: Mapping[str, JSON]) -> None:
    """Raises ValueError, naming the argument, what was found and what is expected, unless the arguments are valid.

    parameters: the "parameters" of a tool's schema, of the draft that its "$schema" names, else 2020-12; OpenAPI's
    "nullable" counts too. A type that JSON Schema does not know is no restriction, nor is a keyword that is null, as an
    empty "required" is written by programs in Go. An argument that the schema does not name is refused where the schema
    lists them: closed_arguments(). A "$ref" is followed within the schema only.
    """
    from jsonschema import Draft202012Validator  # not at the top: 0.1 s
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = closed_arguments(parameters)
    validator = _lenient(validator_for(schema, default=Draft202012Validator))(schema, registry=Registry())
    try:
        error = best_match(validator.iter_errors(dict(arguments)))
    except Exception as problem:  # a malformed schema fails anywhere in the library
        raise ValueError(
            f"the tool's schema cannot be applied ({type(problem).__name__}: {problem}). Correct its 'parameters'."
        ) from problem
    if error is not None:
        raise ValueError(_message(error))


@cache
def _lenient(base: type[Validator]) -> Callable[..., Validator]:
    """The validator, lenient on "nullable" values and keywords that are null, and on types that it does not know."""
    from jsonschema.validators import extend

    def of_known_types(rule: Callable[..., Any]) -> Callable[..., Any]:
        def check(validator: Validator, types: object, value: JSON, schema: JSON) -> Iterable[ValidationError]:
            names = types if isinstance(types, list) else [types]
            known_types = [name for name in names if name in _TYPES]
            return rule(validator, known_types, value, schema) or () if known_types else ()

        return check

    def with_paths(rule: Callable[..., Any]) -> Callable[..., Any]:
        def check(validator: Validator, properties: object, value: JSON, schema: JSON) -> Iterable[ValidationError]:
            # jsonschema 4.26 gives the error of a schema that is "false" no path
            members = cast("Mapping[str, JSON]", properties)
            subschemas = {name: _NOTHING if each is False else each for name, each in members.items()}
            return rule(validator, subschemas, value, schema) or ()

        return check

    def unless_null(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        def check(validator: Validator, keyword: object, value: JSON, schema: JSON) -> Iterable[ValidationError]:
            is_free = value is None and isinstance(schema, Mapping) and schema.get("nullable") is True
            is_free = is_free or (keyword is None and name != "const")
            return () if is_free else rule(validator, keyword, value, schema) or ()

        return check

    own = {"type": of_known_types(base.VALIDATORS["type"]), "properties": with_paths(base.VALIDATORS["properties"])}
    return extend(base, {name: unless_null(name, rule) for name, rule in {**base.VALIDATORS, **own}.items()})


def _message(error: ValidationError) -> str:
    """What is wrong with which argument."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    where = f"the argument '{path[1:]}' is" if path else "the arguments are"
    value, schema = cast("Any", error.instance), error.schema
    rule, expected = error.validator, cast("Any", error.validator_value)
    if not isinstance(schema, Mapping):  # "false", elsewhere than in "properties"
        return f"{where if path else 'an argument is'} {_shown(value)}, expected none."
    if rule == "required":
        name = next(name for name in expected if name not in value)
        return f"the argument '{f'{path}.{name}'[1:]}' is missing."
    if rule == "additionalProperties":
        named = schema.get("properties") or {}
        patterns = schema.get("patternProperties") or ()
        name = next(name for name in value if name not in named and not any(re.search(one, name) for one in patterns))
        return f"there is no argument '{f'{path}.{name}'[1:]}'; expected {', '.join(named) or 'none'}."
    return f"{where} {_shown(value)}, expected {_expected(str(rule), expected, schema)}."


def _expected(rule: str, value: object, schema: Mapping[str, JSON]) -> str:
    if schema == _NOTHING:
        return "none"
    if rule == "type":
        return " or ".join(map(str, value if isinstance(value, list) else [value]))
    if rule in ("enum", "const"):
        choices = [_shown(choice) for choice in (value if rule == "enum" and isinstance(value, list) else [value])]
        return f"{'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
    if rule in ("anyOf", "oneOf"):
        return f"{'exactly ' if rule == 'oneOf' else ''}one of {_shown(value)}"
    bounds = {name: schema[name] for name in _BOUNDS if name in schema}
    return _shown(bounds if rule in bounds else {rule: value})


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"
