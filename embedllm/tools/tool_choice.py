"""tool_choice: whether the model may, must or must not call a tool; a call that it must write follows a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from embedllm.sampling.structured.response_format import Source
from embedllm.tools.calls import Parameters
from embedllm.tools.formats import ToolFormat

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON

# what stands before the JSON of a call, the name of its arguments, and what stands behind
_AROUND = {
    "hermes": ("<tool_call>", "\n", "arguments", "\n", "</tool_call>"),
    "jamba": ("<tool_calls>", "[\n", "arguments", "\n]", "</tool_calls>"),
    "nemotron": ("<toolcall>", " ", "arguments", " ", "</toolcall>"),
    "phi4": ("<|tool_call|>", "[", "arguments", "]", "<|/tool_call|>"),
    "llama3": ("", "", "parameters", "", ""),
    "json": ("", "", "arguments", "", ""),
}


def is_forced(choice: str) -> bool:
    """Whether the model must call a tool."""
    return choice not in ("auto", "none")


def call_grammar(
    choice: str, written: ToolFormat, parameters: Parameters | None, special: Callable[[str], int | None]
) -> Source:
    """The grammar of one call, of any tool or of the one that is named.

    special: the id of a mark that is a special token. Raises ValueError where there is no such tool, and for families
    whose calls are not JSON.
    """
    names = list(parameters or {})
    if choice != "required" and choice not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise ValueError(f"tool_choice is {choice!r}; expected 'auto', 'none', 'required' or a tool's name: {known}.")
    if not parameters:
        raise ValueError("tool_choice is 'required', and there are no tools; give tools=.")
    if written.name not in _AROUND:
        raise ValueError(
            f"tool_choice is {choice!r}; this model's calls ('{written.name}') are not held to a grammar, so that only "
            f"'auto' and 'none' are followed. Those that are: {', '.join(_AROUND)}."
        )
    opening, before, key, behind, closing = _AROUND[written.name]
    calls: list[JSON] = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: _closed(parameters[name])},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for name in (names if choice == "required" else [choice])
    ]
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    pieces = (_mark(opening, special), _text(before), "call", _text(behind), _mark(closing, special))
    return Source(kind="lark", text=f"start: {' '.join(filter(None, pieces))}\ncall: %json {json.dumps(schema)}\n")


def _closed(parameters: object) -> JSON:
    """Without arguments that the tool has not, as the check before a call demands it too."""
    given = parameters if isinstance(parameters, dict) else {}
    return {"type": "object", "properties": {}, "additionalProperties": False, **given}


def _mark(mark: str, special: Callable[[str], int | None]) -> str:
    token = special(mark) if mark else None
    return _text(mark) if token is None else f"<[{token}]>"


def _text(text: str) -> str:
    return json.dumps(text) if text else ""
