"""A request's JSON schema, by which `embedllm serve` and `embedllm worker` check and describe what they are sent."""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from embedllm.files.nearest import nearest

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

    from embedllm.types import JSON

_log = logging.getLogger("embedllm.openai")
Schema = Mapping[str, Any]  # Any: JSON

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
NUMBER: Schema = {"type": "number"}
STRINGS: Schema = {"type": "array", "items": STRING}


def integer(least: int, most: int = 2**31 - 1) -> Schema:
    """A whole number of a range."""
    return {"type": "integer", "minimum": least, "maximum": most}


def number(least: float, most: float) -> Schema:
    """A number of a range."""
    return {"type": "number", "minimum": least, "maximum": most}


def one_of(*schemas: Schema) -> Schema:
    """Any of several forms."""
    return {"anyOf": list(schemas)}


def nullable(schema: Schema) -> Schema:
    """A form, or null."""
    return one_of(schema, {"type": "null"})


def array(items: Schema, least: int = 0) -> Schema:
    """A list."""
    return {"type": "array", "items": items, **({"minItems": least} if least else {})}


class InvalidRequest(ValueError):
    """A request that does not follow its schema."""

    def __init__(self, message: str, *, code: str = "invalid_value", param: str | None = None) -> None:
        """code, param: OpenAI's words for what is wrong, and the name of the parameter."""
        super().__init__(message)
        self.code, self.param = code, param


@dataclass(frozen=True)
class Body:
    """An object's schema. null counts as not given.

    What is not named here is left out, and logged at DEBUG; with is_closed it is refused.
    """

    properties: Mapping[str, Schema]
    required: Sequence[str] = ()
    name: str = "Request"
    unfollowed: Sequence[str] = field(default=())  # known, and without an effect: not logged
    is_closed: bool = False

    @cached_property
    def schema(self) -> dict[str, Any]:
        """As a JSON schema."""
        schema = {"type": "object", "properties": dict(self.properties), "required": list(self.required)}
        return {**schema, "additionalProperties": False} if self.is_closed else schema

    @cached_property
    def validator(self) -> Validator:
        from jsonschema import Draft202012Validator  # takes a while
        from jsonschema.validators import extend

        # by the specification 1.0 is an integer, too, which what reads token ids stumbles over
        types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda checker, value: type(value) is int)
        return extend(Draft202012Validator, type_checker=types)(self.schema)

    def parse(self, raw: bytes) -> dict[str, Any]:
        """As check(), of a JSON text."""
        try:
            body = json.loads(raw, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is one, too
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidRequest(f"the body is no JSON: {reason}.", code="invalid_json") from None
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is {type(body).__name__}; expected a JSON object.", code="invalid_json")
        return self.check(body)

    def check(self, body: Mapping[str, JSON]) -> dict[str, Any]:
        """The values that were given. Raises InvalidRequest for a wrong or a missing one."""
        values = {name: value for name, value in body.items() if value is not None and name in self.properties}
        if unknown := [name for name in body if name not in self.properties and name not in self.unfollowed]:
            if self.is_closed:
                hint = nearest(unknown[0], self.properties)
                message = f"'{self.name}' has no parameter '{unknown[0]:.80}'.{hint}"
                raise InvalidRequest(message, code="unknown_parameter", param=unknown[0])
            _log.debug("%s has %s, which has no effect here", self.name, ", ".join(map(ascii, unknown)))
        self._check_values(values)
        return values

    def _check_values(self, values: Mapping[str, JSON]) -> None:
        from jsonschema.exceptions import best_match

        error = best_match(self.validator.iter_errors(values))
        if error is None:
            return
        where = ".".join(str(part) for part in error.absolute_path)
        if error.validator == "required":
            missing = next(name for name in error.validator_value if name not in error.instance)
            where = f"{where}.{missing}" if where else missing
            raise InvalidRequest(f"'{where}' is missing.", code="missing_required_parameter", param=where)
        expected = _expected(str(error.validator), error.validator_value)
        raise InvalidRequest(f"'{where}' is {reprlib.repr(error.instance)}; expected {expected}.", param=where)


_WORDS = {
    "type": "the type {}",
    "minimum": "{} or more",
    "maximum": "{} or less",
    "exclusiveMinimum": "more than {}",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
    "enum": "one of {}",
    "pattern": "a text that matches {}",
}


def _expected(rule: str, value: Any) -> str:  # noqa: ANN401  # JSON
    """In words."""
    if rule == "anyOf":
        rule, value = "type", " or ".join(dict.fromkeys(_form(schema) for schema in value if "type" in schema))
    return _WORDS.get(rule, "another form").replace("{}", value if isinstance(value, str) else json.dumps(value))


def _form(schema: Schema) -> str:
    """In words, with what a list has: where several forms are taken, nothing else says which lists are."""
    if "type" not in schema.get("items", ()):
        return schema["type"]
    return f"{'non-empty ' if schema.get('minItems') else ''}array of {_form(schema['items'])}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
