"""The body of a tool call, what stands between its marks, read in each of the ways in which models write it.

A reader takes the body and the parameters of the tools, and gives calls; their ids are "" where the model wrote none.
It raises ValueError, saying what is wrong, when the body is no call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

from embedllm.tools.calls import Parameters, ToolCall

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON

BodyReader: TypeAlias = Callable[[str, Parameters], list[ToolCall]]

_FENCED = re.compile(r"```(?:json|tool_code|tool_call)?\s*(.*?)\s*(?:```)?", re.DOTALL)
_BETWEEN = re.compile(r"[\s,;]*")
_NAMES, _ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
_XML_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_XML_PARAMETER = re.compile(r"\s*<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def read_json(body: str, _: Parameters) -> list[ToolCall]:
    """Objects with "name" and "arguments" (or "parameters"), one after another or in a list, in a fence or not."""
    text = body.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    calls: list[ToolCall] = []
    at = 0
    while at < len(text):
        value, at = _json_at(text, at)
        calls += [_json_call(entry) for entry in (value if isinstance(value, list) else [value])]
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
    if not calls:
        raise ValueError("there is nothing between the marks")
    return calls


def read_mistral(body: str, parameters: Parameters) -> list[ToolCall]:
    """name[ARGS]{...} or name[CALL_ID]id[ARGS]{...}, or else JSON."""
    text = body.strip()
    if not text or text[0] in "[{":
        return read_json(text, parameters)
    head, mark, arguments = text.partition("[ARGS]")
    if not mark:
        head, mark, rest = text.partition("{")
        arguments = mark + rest
    name, _, call_id = head.partition("[CALL_ID]")
    return [ToolCall(id=call_id.strip(), name=_named(name), arguments=read_arguments(arguments))]


def read_named(body: str, _: Parameters, *, after: str) -> list[ToolCall]:
    """A name, a mark, and the arguments as JSON, in a fence or not."""
    name, mark, arguments = body.partition(after)
    if not mark:
        raise ValueError(f"there is no '{after}' after the name")
    if not arguments.lstrip().startswith("{"):  # what stood before the mark is the type
        name, mark, arguments = arguments.partition("\n")
    fenced = _FENCED.fullmatch(arguments.strip())
    return [ToolCall(id="", name=_named(name), arguments=read_arguments(fenced[1] if fenced else arguments))]


def read_xml(body: str, parameters: Parameters) -> list[ToolCall]:
    """<function=name> with one <parameter=name> for each argument; what is no text there is JSON."""
    function = _XML_FUNCTION.fullmatch(body)
    if function is None:
        raise ValueError("there is no <function=name>")
    name, rest = function[1], function[2]
    properties = parameters.get(name, {}).get("properties")
    schemas = properties if isinstance(properties, Mapping) else {}
    pairs: list[tuple[str, JSON]] = []
    at = 0
    while at < len(rest) and rest[at:].strip():
        parameter = _XML_PARAMETER.match(rest, at)
        if parameter is None:
            raise ValueError(f"expected <parameter=name>...</parameter>, found {rest[at:].strip()[:80]!r}")
        pairs.append((parameter[1], _typed(parameter[2], schemas.get(parameter[1]))))
        at = parameter.end()
    return [ToolCall(id="", name=name, arguments=_unique(pairs))]


def read_python(body: str, _: Parameters) -> list[ToolCall]:
    """[name(argument=value, ...), ...] as in Python, each value a literal; read, not run."""
    try:
        tree = ast.parse(body.strip(), mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_python_call(call) for call in calls]
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is no call as in Python ({error})") from error


def _python_call(call: ast.expr) -> ToolCall:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute) or call.args:
        raise ValueError(f"expected name(argument=value), found {ast.unparse(call)[:80]!r}")
    arguments: dict[str, JSON] = {}
    for keyword in call.keywords:
        name = keyword.arg or _fail("** is no argument")
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError as error:
            raise ValueError(f"the value of '{name}' is no literal: {ast.unparse(keyword.value)[:80]}") from error
        arguments[name] = value if _is_json(value) else _fail(f"the value of '{name}' is nothing that JSON can hold")
    return ToolCall(id="", name=ast.unparse(call.func), arguments=arguments)


def _is_json(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(item) for name, item in value.items())
    return value is None or isinstance(value, str | int | float)


def _json_at(text: str, at: int) -> tuple[JSON, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from error


def read_arguments(text: str) -> dict[str, JSON]:
    """Arguments: a JSON object and nothing more; nothing at all where there are none."""
    if not text.strip():
        return {}
    start = len(text) - len(text.lstrip())
    value, end = _json_at(text, start)
    if text[end:].strip():
        raise ValueError(f"after the arguments comes {text[end:].strip()[:80]!r}")
    return _arguments(value)


def _json_call(value: JSON) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError(f"a call is an object with a name and arguments, found {json.dumps(value)[:80]}")
    call_id = value.get("id")
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    inner = cast("dict[str, JSON]", inner)
    if isinstance(inner.get("function"), str):
        inner = {"name": inner["function"], **{key: item for key, item in inner.items() if key != "function"}}
    name = next((inner[key] for key in _NAMES if key in inner), None)
    given = [key for key in _ARGUMENTS if key in inner]
    if not isinstance(name, str):
        raise ValueError(f'the call has no "name", only {", ".join(map(repr, inner)) or "nothing"}')
    if len(given) > 1:
        raise ValueError('the call has both "arguments" and "parameters"')
    arguments = _arguments(inner[given[0]]) if given else {}
    return ToolCall(id=call_id if isinstance(call_id, str) else "", name=_named(name), arguments=arguments)


def _arguments(value: JSON) -> dict[str, JSON]:
    if isinstance(value, str):  # JSON in JSON, as OpenAI has it
        value = _json_at(value.strip(), 0)[0]
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"the arguments are {json.dumps(value)[:80]}, expected an object")
    return value


def _named(name: str) -> str:
    return name.strip() or _fail("the call has no name")


def _typed(text: str, schema: object) -> JSON:
    """The value of an argument that stands as plain text: JSON unless it may be a text."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        value, end = _json_at(text.strip(), 0)
    except ValueError:
        return text  # the check of the arguments says what was expected
    return text if text.strip()[end:] else value


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    """An object; json.loads alone would keep the last of two equal keys, and run something else than was said."""
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"'{twice}' is there twice")
    return dict(pairs)


def _fail(problem: str) -> NoReturn:
    raise ValueError(problem)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=lambda name: _fail(f"{name} is no value of JSON"))
read_function_tag = partial(read_named, after=">")
