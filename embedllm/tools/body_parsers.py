"""The body of a tool call, what stands between its marks, read as its description says.

A reader takes the description, the body and the parameters of the tools, and gives calls; their ids are "" where the
model wrote none. It raises ValueError, saying what is wrong, when the body is no call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from embedllm.tools.calls import Parameters, ToolCall
from embedllm.tools.formats import CallShape, Style, ToolFormat
from embedllm.tools.notations.gemma import read_gemma
from embedllm.tools.notations.pairs import read_pairs
from embedllm.tools.notations.tree import read_tree
from embedllm.tools.notations.values import json_at, python_value, typed_value, unique

if TYPE_CHECKING:
    from embedllm.types import JSON

BodyReader: TypeAlias = Callable[[ToolFormat, CallShape, str, Parameters], list[ToolCall]]

_FENCED = re.compile(r"```(?:json|tool_code|tool_call)?\s*(.*?)\s*(?:```)?", re.DOTALL)
_BETWEEN = re.compile(r"[\s,;\]]*")
_NAMES, _ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
_KEYWORD = re.compile(r"\s*(\w+)\s*=\s*")
_PYTHON_NAME = re.compile(r"[\s,;\[]*([A-Za-z_][\w.:/-]*)\s*\(")
_PYTHON_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[\[({]|[\])}]|,", re.DOTALL)


def read_body(written: ToolFormat, shape: CallShape, body: str, parameters: Parameters) -> list[ToolCall]:
    """The calls of a body."""
    calls = _READERS[shape.style](written, shape, body, parameters)
    return [call for call in calls if call.name not in written.no_tool]


def read_json(_: ToolFormat, shape: CallShape, body: str, __: Parameters) -> list[ToolCall]:
    """Objects with name and arguments, one after another or in a list, in a fence or not."""
    text = body.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    is_keyed = '"$name":' in shape.text
    calls: list[ToolCall] = []
    at = 0
    while at < len(text):
        value, at = json_at(text, at)
        for entry in value if isinstance(value, list) else [value]:
            calls += _keyed_calls(entry) if is_keyed else [_json_call(entry)]
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
    if not calls:
        raise ValueError("there is nothing between the marks")
    return calls


def read_named(_: ToolFormat, shape: CallShape, body: str, __: Parameters) -> list[ToolCall]:
    """A name, and the arguments as JSON."""
    head = shape.head.match(body)
    if head is None:
        raise ValueError(f"expected it to be like {shape.text!r}")
    groups = head.groupdict()
    tail = shape.text.partition("$arguments")[2].strip().removesuffix(shape.closing).strip()
    rest = body[head.end() :].strip().removesuffix(tail)
    fenced = _FENCED.fullmatch(rest.strip())
    arguments = read_arguments(fenced[1] if fenced else rest)
    return [ToolCall(id=groups.get("id") or "", name=_named(groups.get("name") or ""), arguments=arguments)]


def read_python(_: ToolFormat, __: CallShape, body: str, parameters: Parameters) -> list[ToolCall]:
    """name(argument=value, ...), ... as in Python, in a list or not, each value a literal; read, not run."""
    text = body.strip()
    calls: list[ToolCall] = []
    at = 0
    while at < len(text):
        name = _PYTHON_NAME.match(text, at)
        if name is None:
            raise ValueError(f"it is no call as in Python: expected name(argument=value), found {text[at:][:80]!r}")
        arguments, at = _python_arguments(text, name.end())
        schema = parameters.get(name[1], {})
        typed = {key: typed_value(value, key, schema) for key, value in arguments.items()}
        calls.append(ToolCall(id="", name=name[1], arguments=typed))
        between = re.compile(r"\s*[,;]?\s*(?:\]\s*$)?").match(text, at)
        at = between.end() if between else at
    if not calls:
        raise ValueError("there is nothing between the marks")
    return calls


def _python_arguments(text: str, at: int) -> tuple[dict[str, JSON], int]:
    arguments: list[tuple[str, JSON]] = []
    while not (closing := re.compile(r"\s*\)").match(text, at)):
        keyword = _KEYWORD.match(text, at)
        if keyword is None:
            raise ValueError(f"expected name(argument=value), found {text[at:][:80]!r}")
        end = _python_end(text, keyword.end())
        arguments.append((keyword[1], _python_argument(keyword[1], text[keyword.end() : end])))
        at = end + (text[end : end + 1] == ",")
    return unique(arguments), closing.end()


def _python_end(text: str, at: int) -> int:
    """Where the value ends that begins at a place: the comma behind it, or the parenthesis."""
    depth = 0
    for match in _PYTHON_STRING.finditer(text, at):
        mark = match[0]
        if depth == 0 and mark in (",", ")"):
            return match.start()
        depth += (mark in "[({") - (mark in "])}") if len(mark) == 1 else 0
    raise ValueError("it is no call as in Python: a parenthesis is not closed")


def _python_argument(name: str, text: str) -> JSON:
    """JSON where it is JSON, whose escapes are not all Python's; else a literal of Python."""
    try:
        value, end = json_at(text.strip(), 0)
        if end == len(text.strip()):
            return value
    except ValueError as error:
        if "is there twice" in str(error):
            raise
    one_line = _PYTHON_STRING.sub(lambda match: match[0].replace("\r", "\\r").replace("\n", "\\n"), text.strip())
    try:
        return python_value(ast.parse(one_line, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the value of '{name}' is no literal ({error}): {text[:80]}") from error
    except ValueError as error:
        raise ValueError(f"the value of '{name}' is {error}") from error


def read_arguments(text: str) -> dict[str, JSON]:
    """Arguments: a JSON object and nothing more; nothing at all where there are none."""
    if not text.strip():
        return {}
    start = len(text) - len(text.lstrip())
    value, end = json_at(text, start)
    if text[end:].strip():
        raise ValueError(f"after the arguments comes {text[end:].strip()[:80]!r}")
    return _arguments(value)


def _keyed_calls(value: JSON) -> list[ToolCall]:
    """{name: arguments}, as Apertus writes calls; the usual object is read too."""
    if not isinstance(value, dict):
        raise ValueError(f"a call is an object with its name as the key, found {json.dumps(value)[:80]}")
    if "name" in value and isinstance(value["name"], str):
        return [_json_call(value)]
    return [ToolCall(id="", name=_named(name), arguments=_arguments(arguments)) for name, arguments in value.items()]


def _json_call(value: JSON) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError(f"a call is an object with a name and arguments, found {json.dumps(value)[:80]}")
    call_id = value.get("id")
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    inner = cast("dict[str, JSON]", inner)
    if isinstance(inner.get("function"), str):
        inner = {"name": inner["function"], **{key: item for key, item in inner.items() if key != "function"}}
    name = next((inner[key] for key in _NAMES if key in inner), None)
    keys = [key for key in _ARGUMENTS if key in inner]
    if not isinstance(name, str):
        raise ValueError(f'the call has no "name", only {", ".join(map(repr, inner)) or "nothing"}')
    if len(keys) > 1:
        raise ValueError('the call has both "arguments" and "parameters"')
    arguments = _arguments(inner[keys[0]]) if keys else {}
    return ToolCall(id=call_id if isinstance(call_id, str) else "", name=_named(name), arguments=arguments)


def _arguments(value: JSON) -> dict[str, JSON]:
    if isinstance(value, str):  # JSON in JSON, as OpenAI has it
        value = json_at(value.strip(), 0)[0]
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"the arguments are {json.dumps(value)[:80]}, expected an object")
    return value


def _named(name: str) -> str:
    if not name.strip():
        raise ValueError("the call has no name")
    return name.strip()


_READERS: Mapping[Style, BodyReader] = {
    "json": read_json,
    "named": read_named,
    "python": read_python,
    "pairs": read_pairs,
    "gemma": read_gemma,
    "tree": read_tree,
}
