"""Tools of a Messages request -> tools of this library; Anthropic's own client tools by the schemas that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedllm.text.chat_template import Message

_PATH = {"type": "string", "description": "Absolute path to a file or directory."}
_INTEGERS = {"type": "array", "items": {"type": "integer"}}

# tools without a schema, which the client runs: what follows their type's name is a date.
# Source: Anthropic's documentation, "Bash tool", "Text editor tool" and "Memory tool" (2025)
_CLIENT_TOOLS: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "bash": (
        "Runs a command in a bash session that persists between calls.",
        {"command": {"type": "string", "description": "The command to run."},
         "restart": {"type": "boolean", "description": "True restarts the session."}},
        (),
    ),
    "text_editor": (
        "Views, creates and edits text files.",
        {"command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
         "path": _PATH, "view_range": _INTEGERS, "file_text": {"type": "string"}, "old_str": {"type": "string"},
         "new_str": {"type": "string"}, "insert_line": {"type": "integer"}, "insert_text": {"type": "string"}},
        ("command", "path"),
    ),
    "memory": (
        "Stores and reads notes in files under /memories.",
        {"command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
         "path": _PATH, "view_range": _INTEGERS, "file_text": {"type": "string"}, "old_str": {"type": "string"},
         "new_str": {"type": "string"}, "insert_line": {"type": "integer"}, "insert_text": {"type": "string"},
         "old_path": _PATH, "new_path": _PATH},
        ("command",),
    ),
}  # fmt: skip


def read_tools(tools: Sequence[Mapping[str, Any]], loaded: Sequence[str] = ()) -> tuple[list[Message], list[str]]:
    """The functions, and a line for each tool that cannot be one: tools that Anthropic's servers run.

    loaded: names of tools that a search has found. Of those with defer_loading these alone are there, after the others
    and in this order, so that the prompt before them stays as it was. Raises ValueError for a tool without a name.
    """
    functions: list[Message] = []
    warnings: list[str] = []
    deferred = {
        name: place
        for place, tool in enumerate(tools)
        if tool.get("defer_loading") is True and isinstance(name := tool.get("name"), str)
    }
    places = [place for place in range(len(tools)) if place not in deferred.values()]
    for place in [*places, *(deferred[name] for name in dict.fromkeys(loaded) if name in deferred)]:
        tool = tools[place]
        kind, name = tool.get("type"), tool.get("name")
        if "input_schema" in tool or kind in (None, "custom"):
            if not isinstance(name, str) or not name:
                raise ValueError(f"tools.{place}.name is {name!r:.80}; expected text.")
            functions.append(_function(name, tool.get("description"), tool.get("input_schema", {}), place))
            continue
        client_tool = next((row for base, row in _CLIENT_TOOLS.items() if str(kind).startswith(f"{base}_2")), None)
        if client_tool is None or not isinstance(name, str):
            warnings.append(f"the tool '{str(kind)[:80]}' does not run here and was left out")
            continue
        description, properties, required = client_tool
        schema = {"type": "object", "properties": dict(properties), "required": list(required)}
        functions.append(_function(name, description, schema, place))
    return functions, warnings


def _function(name: str, description: object, schema: object, place: int) -> Message:
    if not isinstance(schema, Mapping):
        raise ValueError(f"tools.{place}.input_schema is {schema!r:.80}; expected a JSON schema.")
    if not isinstance(description, str | None):
        raise ValueError(f"tools.{place}.description is {description!r:.80}; expected text.")
    function = {"name": name, "description": description or "", "parameters": dict(schema)}
    return {"type": "function", "function": function}


def read_choice(choice: Mapping[str, Any] | None, *, has_tools: bool) -> str:
    """tool_choice as this library has it. Raises ValueError."""
    kind = "auto" if choice is None else choice.get("type")
    if kind == "tool" and choice is not None and isinstance(choice.get("name"), str):
        return str(choice["name"])
    words = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in words:
        raise ValueError(
            f"tool_choice is {choice!r:.120}; expected a type of 'auto', 'any', 'none', or 'tool' by name."
        )
    return words[kind] if has_tools else "auto"
