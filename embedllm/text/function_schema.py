"""A Python function as a tool: its JSON schema, from signature, type hints and Google-style docstring.

The schema is the one that transformers 5.23 makes (get_json_schema), since that is what templates were written for.
"""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from embedllm.cancel import Cancel
from embedllm.types import JSON

_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_PLAIN = {**_SCALARS, list: "array", tuple: "array", dict: "object"}
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_HEADING = re.compile(r"[ \t]*(Args|Returns|Raises):[ \t]*")
_ARGUMENT = re.compile(r"([ \t]*)(\w+):[ \t]*(.*)")
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)

Schema: typing.TypeAlias = dict[str, JSON]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A tool whose schema is given, not made of a function's signature, with what runs it."""

    schema: Mapping[str, JSON]
    """As OpenAI has it: {"type": "function", "function": {"name", "description", "parameters"}}."""
    run: Callable[[Mapping[str, JSON], Cancel], object]
    """Called with the arguments, which fit the schema, and the switch that ends the run; gives text or JSON."""
    arun: Callable[[Mapping[str, JSON], Cancel], Awaitable[object]] | None = None
    """In its place for arun_tools()."""


def tool_schema(function: Callable[..., object]) -> Schema:
    """The tool that a function is, as {"type": "function", "function": {"name", "description", "parameters"}}.

    Each argument needs a type hint and a line under "Args:" in the docstring; "(choices: [...])" at the end of that
    line lists the values allowed. `self` and `cls` are left out.
    Raises ValueError, with the name of the function and argument, when something is missing or cannot be JSON.
    """
    name = getattr(function, "__name__", "operation")
    docstring = inspect.getdoc(function)
    if not docstring:
        raise ValueError(f"the tool '{name}' has no docstring. Say what it does, and describe its arguments.")
    description, arguments, returns = _sections(docstring)
    hints = _hints(function, name)
    properties: dict[str, Schema] = {}
    required: list[JSON] = []
    for parameter in _parameters(function):
        where = f"the tool '{name}', argument '{parameter.name}'"
        if parameter.kind not in _BY_NAME:
            raise ValueError(
                f"{where}: it cannot be given by name, as {parameter.kind.description}. Name each argument."
            )
        if parameter.name not in hints:
            raise ValueError(f"{where}: there is no type hint.")
        if parameter.name not in arguments:
            raise ValueError(f"{where}: the docstring does not describe it under 'Args:'.")
        schema = _hint_schema(hints[parameter.name], where)
        properties[parameter.name] = _described(schema, arguments[parameter.name], where)
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters: Schema = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    result: Schema = {"name": name, "description": description, "parameters": parameters}
    if "return" in hints:
        result |= _return_entry(hints["return"], returns)
    return {"type": "function", "function": result}


def hinted_arguments(function: Callable[..., object], arguments: Mapping[str, JSON]) -> dict[str, object]:
    """The arguments as a function's type hints have them: members of an Enum in place of their values."""
    hints = _hints(function, getattr(function, "__name__", "operation"))
    return {name: _hinted(hints.get(name), value) for name, value in arguments.items()}


def _hinted(hint: object, value: JSON) -> object:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next((member for member in hint if (type(member.value), member.value) == (type(value), value)), value)
    if origin is typing.Union or origin is types.UnionType:
        found = (_hinted(arg, value) for arg in args)
        return next((one for one in found if isinstance(one, enum.Enum) or one != value), value)
    if origin is list and isinstance(value, list):
        return [_hinted(args[0], one) for one in value]
    if origin is dict and len(args) == 2 and isinstance(value, dict):
        return {name: _hinted(args[1], one) for name, one in value.items()}
    return value


def _hints(function: Callable[..., object], name: str) -> dict[str, object]:
    """The type hints, those written as text resolved."""
    try:
        return typing.get_type_hints(function)
    except Exception as error:  # a hint is an expression, which can raise anything that Python does
        raise ValueError(
            f"the tool '{name}' has a type hint that cannot be resolved ({type(error).__name__}: {error}). Import what "
            "it names where the function is defined, not under TYPE_CHECKING only."
        ) from error


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters that a caller gives."""
    parameters = list(inspect.signature(function).parameters.values())
    implicit = (
        parameters and parameters[0].name in ("self", "cls") and parameters[0].annotation is inspect.Parameter.empty
    )
    return parameters[1:] if implicit else parameters


def _sections(docstring: str) -> tuple[str, dict[str, str], str | None]:
    """Description, the arguments' descriptions, and what is returned, out of a Google-style docstring."""
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in docstring.strip().splitlines():
        heading = _HEADING.fullmatch(line)
        if heading:
            current = heading[1]
        sections.setdefault(current, [])
        if not heading and (line.strip() or current != "Args"):
            sections[current].append(line)
    returns = "\n".join(sections["Returns"]).strip() if sections.get("Returns") else None
    return "\n".join(sections[""]).strip(), _arguments(sections.get("Args", [])), returns


def _arguments(lines: Sequence[str]) -> dict[str, str]:
    """Argument -> description; a line that is indented deeper than the argument's goes on with it."""
    parts: dict[str, list[str]] = {}
    indent = name = ""
    for line in lines:
        found = _ARGUMENT.fullmatch(line)
        deeper = bool(name) and line.startswith((indent + " ", indent + "\t"))
        if found and not deeper:
            indent, name = found[1], found[2]
            parts[name] = [found[3].strip()]
        elif name:
            parts[name].append(line.strip())
    return {name: " ".join(part for part in texts if part) for name, texts in parts.items()}


def _described(schema: Schema, description: str, where: str) -> Schema:
    """A schema with its description, and with the choices that the description lists."""
    choices = _CHOICES.search(description)
    if choices:
        try:
            values = json.loads(choices[1])
        except ValueError as error:
            raise ValueError(f"{where}: the choices are not a JSON list: {choices[1]}") from error
        schema["enum"] = [value.strip() if isinstance(value, str) else value for value in values]
        description = description[: choices.start()].strip()
    return {**schema, "description": description}


def _return_entry(hint: object, description: str | None) -> Schema:
    """What the schema says of the returned value; nothing when its type cannot be said, a model never writes it."""
    try:
        schema = _hint_schema(hint, "the returned value")
    except ValueError:
        return {}
    return {"return": schema if description is None else {**schema, "description": description}}


def _hint_schema(hint: object, where: str) -> Schema:
    """The JSON schema of a type hint."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return {}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_schema([member.value for member in hint], where)
    if isinstance(hint, type) and hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin is typing.Literal:
        return _enum_schema(list(args), where)
    if origin is typing.Union or origin is types.UnionType:
        return _union_schema(args, where)
    if not args and origin in _PLAIN:  # typing.List without what it holds
        return {"type": _PLAIN[origin]}
    if origin is list:
        return {"type": "array", "items": _hint_schema(args[0], where)}
    if origin is tuple and len(args) > 1 and ... not in args:
        return {"type": "array", "prefixItems": [_hint_schema(arg, where) for arg in args]}
    if origin is dict and len(args) == 2:
        return {"type": "object", "additionalProperties": _hint_schema(args[1], where)}
    raise ValueError(
        f"{where}: {hint!r} has no JSON schema here. Use int, float, str, bool, an Enum, Literal, list, dict, a tuple "
        "of two or more, or unions of these; or write the schema by hand and pass it as a dict."
    )


def _enum_schema(values: Sequence[object], where: str) -> Schema:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise ValueError(f"{where}: its values {values!r} must be int, float, str, bool or None, and at least one.")
    kinds = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}  # pyright: ignore[reportReturnType] # scalars, checked above


def _union_schema(args: Sequence[object], where: str) -> Schema:
    """Plain types side by side become a list of names, others "anyOf"; None becomes "nullable"."""
    members = [_hint_schema(arg, where) for arg in args if arg is not type(None)]
    schema: Schema
    if len(members) == 1:
        schema = members[0]
    elif all(member.keys() == {"type"} and isinstance(member["type"], str) for member in members):
        names = sorted({str(member["type"]) for member in members})
        schema = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = {"anyOf": members}
    return {**schema, "nullable": True} if type(None) in args else schema
