"""A Python function as a tool: its JSON schema, from signature, type hints and Google-style docstring.

The schema is the one that transformers 5.24 makes (get_json_schema), since that is what templates were written for.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from embedllm.cancel import Cancel
from embedllm.text.type_schema import Schema, TypeSchemas, from_json, type_hints
from embedllm.types import JSON

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_HEADING = re.compile(r"[ \t]*(Args|Returns|Raises):[ \t]*")
_ARGUMENT = re.compile(r"([ \t]*)(\w+)(?:[ \t]*\([^()]*\))?:[ \t]*(.*)")  # "name: ..." or "name (type): ..."
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


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
        lost = (
            " Python's option -OO removes docstrings: leave it out, or give schemas." if sys.flags.optimize > 1 else ""
        )
        raise ValueError(f"the tool '{name}' has no docstring. Say what it does, and describe its arguments.{lost}")
    description, arguments, returns = _sections(docstring)
    hints, types = type_hints(function, f"the tool '{name}'"), TypeSchemas(as_transformers=True)
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
        schema = types.read(hints[parameter.name], where)
        properties[parameter.name] = _described(schema, arguments[parameter.name], where)
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters: Schema = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    if types.definitions:
        parameters["$defs"] = types.definitions
    result: Schema = {"name": name, "description": description, "parameters": parameters}
    if "return" in hints:
        result |= _return_entry(hints["return"], returns)
    return {"type": "function", "function": result}


def argument_reader(function: Callable[..., object]) -> Callable[[Mapping[str, JSON]], dict[str, object]]:
    """Reads the arguments of calls as a function's type hints have them: members of an Enum, dataclasses, tuples.

    It raises ValueError for one that is no value of its type.
    """
    hints = type_hints(function, f"the function '{getattr(function, '__name__', 'operation')}'")

    def read(arguments: Mapping[str, JSON]) -> dict[str, object]:
        typed: dict[str, object] = {}
        for name, value in arguments.items():
            try:
                typed[name] = from_json(value, hints[name])
            except ValueError as error:
                raise ValueError(f"the argument '{name}': {error}") from error
        return typed

    return read


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
        match = _ARGUMENT.fullmatch(line)
        deeper = bool(name) and line.startswith((indent + " ", indent + "\t"))
        if match and not deeper:
            indent, name = match[1], match[2]
            parts[name] = [match[3].strip()]
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
    types = TypeSchemas(as_transformers=True)
    try:
        schema = types.read(hint, "the returned value")
    except ValueError:
        return {}
    if types.definitions:  # which have no place here
        return {}
    return {"return": schema if description is None else {**schema, "description": description}}
