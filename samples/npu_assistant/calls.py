"""Tool calls in the text of a reply, and whether their arguments are what the tool's schema asks for.

The Hermes form, which Qwen and the demo write: <tool_call>{"name": ..., "arguments": {...}}</tool_call>. The
library is asked for the reply as it is written; this file is the one place here that reads calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from embedllm.tool_schema import JSON

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "number": (int, float), "integer": int, "boolean": bool}


@dataclass(frozen=True, slots=True)
class Call:
    """What the model wants to run. problem: why it can't be, when its text is no proper call."""

    name: str
    arguments: dict[str, JSON] = field(default_factory=dict)
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"


class CallReader:
    """Splits a reply that comes in pieces into the text for the user and the calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._held = ""
        self._is_inside = False

    def push(self, piece: str) -> str:
        """Take the next piece; the text that is certain to be none of a call."""
        self._held += piece
        shown = ""
        while True:
            mark = CLOSE if self._is_inside else OPEN
            before, found, after = self._held.partition(mark)
            if not found:
                break
            if self._is_inside:
                self.calls.append(read_call(before))
            else:
                shown += before
            self._held, self._is_inside = after, not self._is_inside
        if not self._is_inside:
            certain = len(self._held) - _begun(self._held)
            shown, self._held = shown + self._held[:certain], self._held[certain:]
        return shown

    def finish(self) -> str:
        """The reply is at its end: the rest of its text. A call without its closing mark counts."""
        rest, self._held = self._held, ""
        if not self._is_inside:
            return rest
        self._is_inside = False
        self.calls.append(read_call(rest))
        return ""


def read_call(text: str) -> Call:
    """The call that the text between the two marks is."""
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        return Call("?", problem="the call is nested too deeply.")
    except ValueError as error:
        return Call("?", problem=f"the call is no JSON ({error}): {text.strip()[:200]}")
    if not isinstance(data, dict) or not isinstance(name := data.get("name"), str):
        return Call("?", problem=f'a call is an object with "name" and "arguments", found: {text.strip()[:200]}')
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        return Call(name, problem=f"the arguments are a {type(arguments).__name__}, expected an object.")
    return Call(name, arguments)


def check_arguments(arguments: Mapping[str, JSON], parameters: Mapping[str, JSON]) -> None:
    """Raises ValueError unless the arguments are what the "parameters" of a tool's schema describe.

    Only what the tools here use of JSON schema: an object of scalars, "required" and "enum".
    """
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    for name in required:
        if name not in arguments:
            raise ValueError(f"the argument '{name}' is missing.")
    for name, value in arguments.items():
        schema = properties.get(name)
        if not isinstance(schema, dict):
            raise ValueError(f"there is no argument '{name}'; expected {', '.join(properties) or 'none'}.")
        kind = str(schema["type"])
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
            raise ValueError(f"the argument '{name}' is {json.dumps(value)[:100]}, expected a {kind}.")
        choices = schema.get("enum")
        if isinstance(choices, list) and value not in choices:
            raise ValueError(f"the argument '{name}' is {value!r}, expected one of {choices}.")


def _object(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    """An object; json.loads alone would keep the last of two equal keys, and compute something else than was said."""
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"'{twice}' is there twice")
    return dict(pairs)


def _begun(text: str) -> int:
    """How many of the last characters may be the beginning of a call's mark."""
    return next((n for n in range(min(len(OPEN) - 1, len(text)), 0, -1) if OPEN.startswith(text[-n:])), 0)
