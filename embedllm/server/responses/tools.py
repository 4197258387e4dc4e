"""Tools of a Responses request -> functions of this library, and calls of these -> the items that clients know.

Functions are taken as they are, those of a namespace by both names in one. Custom tools, and shells that the client
runs, become functions with the arguments that their items have, and so do those of MCP servers, which run here. What
OpenAI's servers run is left out, and said so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from embedllm.server.endpoint import ToolServers
from embedllm.server.responses.mcp_tools import McpTool, read_mcp

if TYPE_CHECKING:
    from embedllm.text.chat_template import Message

ToolKind: TypeAlias = Literal["function", "custom", "local_shell", "shell", "apply_patch", "mcp"]

_STRINGS = {"type": "array", "items": {"type": "string"}}
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool that the client runs, by the name that the model calls it by."""

    kind: ToolKind
    name: str  # without its namespace
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    """A built-in tool that clients run, as a function."""

    kind: ToolKind
    description: str
    parameters: Mapping[str, Any]


# by the types of the tools; the arguments are those of their items. Source: the package openai 3.54, types/responses:
# response_output_item (LocalShellCall), response_function_shell_tool_call, response_apply_patch_tool_call
_BUILT_IN: Mapping[str, _BuiltIn] = {
    "local_shell": _BuiltIn(
        "local_shell", "Runs a command in a local shell and returns its output.",
        {"type": "object", "required": ["command"],
         "properties": {"command": {**_STRINGS, "description": "The program and its arguments."},
                        "working_directory": {"type": "string"}, "timeout_ms": {"type": "integer"}}},
    ),
    "shell": _BuiltIn(
        "shell", "Runs commands in a shell and returns their output.",
        {"type": "object", "required": ["commands"],
         "properties": {"commands": {**_STRINGS, "description": "Command lines."},
                        "timeout_ms": {"type": "integer"}, "max_output_length": {"type": "integer"}}},
    ),
    "apply_patch": _BuiltIn(
        "apply_patch", "Creates, updates or deletes a file by a diff.",
        {"type": "object", "required": ["type", "path"],
         "properties": {"type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                        "path": {"type": "string"}, "diff": {"type": "string"}}},
    ),
}  # fmt: skip


@dataclass(slots=True)
class Tools:
    """What the model may call."""

    functions: list[Message] = field(default_factory=list)
    """For the chat template."""
    clients: dict[str, ClientTool] = field(default_factory=dict)
    """By the functions' names."""
    warnings: list[str] = field(default_factory=list)
    """A line for each tool that was left out."""
    servers: ToolServers = field(default_factory=dict)
    """MCP servers that may be used."""
    mcp: dict[str, McpTool] = field(default_factory=dict)
    """Tools that the server runs, by the functions' names."""

    def add(self, tools: object, where: str = "tools") -> None:
        """Raises ValueError for a tool that has no name, or that of another one."""
        if not isinstance(tools, Sequence) or isinstance(tools, str):
            raise ValueError(f"{where} is {tools!r:.80}; expected a list.")
        for place, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                raise ValueError(f"{where}.{place} is {tool!r:.80}; expected an object.")
            self._add(tool, f"{where}.{place}", None)

    def _add(self, tool: Mapping[str, Any], where: str, namespace: str | None) -> None:
        kind = tool.get("type", "function")
        built_in = next((row for name, row in _BUILT_IN.items() if name == kind), None)
        if kind == "namespace" and namespace is None:
            name = _name(tool, where)
            inner = tool.get("tools")
            if not isinstance(inner, Sequence) or isinstance(inner, str):
                raise ValueError(f"{where}.tools is {inner!r:.80}; expected a list.")
            for place, one in enumerate(inner):
                if not isinstance(one, Mapping):
                    raise ValueError(f"{where}.tools.{place} is {one!r:.80}; expected an object.")
                self._add(one, f"{where}.tools.{place}", name)
        elif kind == "function":
            function = tool.get("function", tool)  # as chat completions have it, too
            if not isinstance(function, Mapping):
                raise ValueError(f"{where}.function is {function!r:.80}; expected an object.")
            self._put("function", _name(function, where), namespace, function.get("description"),
                      function.get("parameters") or {"type": "object", "properties": {}}, where)  # fmt: skip
        elif kind == "custom":
            self._put("custom", _name(tool, where), namespace, _custom_description(tool), _INPUT, where)
        elif kind == "mcp":
            for one in read_mcp(tool, where, self.servers):
                self._put("mcp", one.name, None, one.function.get("description"), one.function["parameters"], where)
                self.mcp[one.name] = one
        elif built_in is not None and not _is_remote(tool):
            name = built_in.kind
            self._put(name, name, None, built_in.description, built_in.parameters, where)
        else:
            self.warnings.append(f"the tool '{str(kind)[:80]}' does not run here and was left out")

    def _put(
        self, kind: ToolKind, name: str, namespace: str | None, description: object, parameters: object, where: str
    ) -> None:
        if not isinstance(parameters, Mapping):
            raise ValueError(f"{where}.parameters is {parameters!r:.80}; expected a JSON schema.")
        if not isinstance(description, str | None):
            raise ValueError(f"{where}.description is {description!r:.80}; expected text.")
        whole = function_name(name, namespace)
        if whole in self.clients:
            raise ValueError(f"{where} is named '{whole}', as another tool is; give it another name.")
        self.clients[whole] = ClientTool(kind=kind, name=name, namespace=namespace)
        function = {"name": whole, "description": description or "", "parameters": dict(parameters)}
        self.functions.append({"type": "function", "function": function})


def function_name(name: str, namespace: object) -> str:
    """What the model calls a tool of a namespace, or of none."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _name(tool: Mapping[str, Any], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}.name is {name!r:.80}; expected text.")
    return name


def _custom_description(tool: Mapping[str, Any]) -> object:
    """With the grammar of its input, which the model is told, and not held to."""
    form, description = tool.get("format"), tool.get("description")
    if not isinstance(form, Mapping) or form.get("type") != "grammar" or not isinstance(description, str | None):
        return description
    rule = f"The input follows this grammar ({form.get('syntax')}):\n{form.get('definition')}"
    return f"{description}\n{rule}" if description else rule


def _is_remote(tool: Mapping[str, Any]) -> bool:
    """Whether a shell is one of OpenAI's containers."""
    environment = tool.get("environment")
    return isinstance(environment, Mapping) and environment.get("type") != "local"


def read_choice(choice: object, tools: Tools) -> str:
    """tool_choice as this library has it; tools that are not allowed are taken out. Raises ValueError."""
    if choice is None or (isinstance(choice, str) and choice in ("auto", "none", "required")):
        return "auto" if choice is None or (choice == "required" and not tools.functions) else str(choice)
    if not isinstance(choice, Mapping) or not isinstance(choice.get("type"), str):
        raise ValueError(f"tool_choice is {choice!r:.120}; expected 'auto', 'none', 'required' or an object.")
    kind = choice["type"]
    if kind == "allowed_tools":
        chosen = choice.get("tools") or []
        if not isinstance(chosen, list):
            raise ValueError(f"tool_choice.tools is {chosen!r:.80}; expected a list.")
        listed = [one for one in chosen if isinstance(one, Mapping)]
        allowed = {name for one in listed for name in (_of_server(one, tools) or [_chosen(one)])}
        tools.functions = [one for one in tools.functions if _named(one) in allowed]
        return "required" if choice.get("mode") == "required" and tools.functions else "auto"
    if kind == "mcp" and choice.get("name") is None and (names := _of_server(choice, tools)):
        tools.functions = [one for one in tools.functions if _named(one) in names]
        return "required"
    name = _chosen(choice)
    if name not in tools.clients:
        if kind in ("function", "custom", "mcp"):
            client_names = ", ".join(f"'{one}'" for one in tools.clients) or "none"
            raise ValueError(f"tool_choice names '{name}', which is none of the tools: {client_names}.")
        tools.warnings.append(f"tool_choice '{kind[:80]}' was left out, as that tool does not run here")
        return "auto"
    return name


def _of_server(choice: Mapping[str, Any], tools: Tools) -> list[str]:
    """The tools of an MCP server that a choice names."""
    if choice.get("type") != "mcp" or choice.get("name") is not None:
        return []
    return [name for name, one in tools.mcp.items() if one.label == choice.get("server_label")]


def _chosen(choice: Mapping[str, Any]) -> str:
    kind, name = str(choice.get("type")), choice.get("name")
    return kind if kind in _BUILT_IN else function_name(str(name), choice.get("namespace"))


def _named(function: Message) -> object:
    inner = function["function"]
    return inner["name"] if isinstance(inner, Mapping) else None


def call_item(tool: ClientTool, *, item_id: str, call_id: str, arguments: str, status: str) -> dict[str, Any]:
    """The item of a call. arguments: the JSON text that the model wrote, or as far as it got."""
    if tool.kind == "function":
        item: dict[str, Any] = {"type": "function_call", "id": item_id, "call_id": call_id, "name": tool.name,
                                "arguments": arguments, "status": status}  # fmt: skip
        return {**item, "namespace": tool.namespace} if tool.namespace else item
    parsed_arguments = _object(arguments)
    if tool.kind == "custom":
        text = parsed_arguments.get("input", arguments)
        item = {"type": "custom_tool_call", "id": item_id, "call_id": call_id, "name": tool.name, "status": status,
                "input": text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)}  # fmt: skip
        return {**item, "namespace": tool.namespace} if tool.namespace else item
    return {"type": f"{tool.kind}_call", "id": item_id, "call_id": call_id, "status": status,
            **_ACTIONS[tool.kind](parsed_arguments)}  # fmt: skip


def _local_shell(arguments: Mapping[str, Any]) -> dict[str, Any]:
    command = arguments.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []  # nothing that runs
    places = {name: arguments[name] for name in ("working_directory", "timeout_ms") if arguments.get(name) is not None}
    return {"action": {"type": "exec", "command": words, "env": {}, **places}}


def _shell(arguments: Mapping[str, Any]) -> dict[str, Any]:
    commands = arguments.get("commands")
    lines = [str(line) for line in commands] if isinstance(commands, list) else []
    return {"action": {"commands": lines, "timeout_ms": arguments.get("timeout_ms"),
                       "max_output_length": arguments.get("max_output_length")}}  # fmt: skip


def _apply_patch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = ("type", "path") if arguments.get("type") == "delete_file" else ("type", "path", "diff")
    return {"operation": {name: str(arguments.get(name, "")) for name in names}}


_ACTIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "local_shell": _local_shell,
    "shell": _shell,
    "apply_patch": _apply_patch,
}


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
