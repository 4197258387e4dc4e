"""Tools of MCP servers in Responses: those that a request may use, their runs, and their items."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from embedllm.cancel import Cancel
from embedllm.generation.run_in_thread import run_in_thread
from embedllm.server.endpoint import ToolServers
from embedllm.tools.arguments import check_arguments
from embedllm.tools.results import error_text, value_text

if TYPE_CHECKING:
    from embedllm.server.request_record import Tracing
    from embedllm.text.function_schema import FunctionTool
    from embedllm.types import JSON

_ELSEWHERE = ("server_url", "connector_id", "tunnel_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool that the server runs."""

    label: str  # of its MCP server
    name: str
    tool: FunctionTool
    needs_approval: bool

    @property
    def function(self) -> Mapping[str, Any]:
        """Its name, description and parameters."""
        return cast("Mapping[str, Any]", self.tool.schema["function"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of a run."""

    text: str  # what the model reads
    is_error: bool


def read_mcp(entry: Mapping[str, Any], where: str, servers: ToolServers) -> list[McpTool]:
    """The tools of an entry of the type "mcp". Raises ValueError for a server that was not configured."""
    if odd := [name for name in _ELSEWHERE if entry.get(name) is not None]:
        raise ValueError(f"{where}.{odd[0]} is set: no address of a request is opened here. Name an MCP server that "
                         f"this server was started with as server_label; there are {_listed(servers)}.")  # fmt: skip
    label = entry.get("server_label")
    if not isinstance(label, str) or label not in servers:
        raise ValueError(f"{where}.server_label is {label!r:.80}; the MCP servers here are {_listed(servers)} "
                         "(embedllm serve --mcp).")  # fmt: skip
    tools = servers[label]
    allowed = entry.get("allowed_tools")
    names = list(tools) if allowed is None else _names(allowed, f"{where}.allowed_tools")
    if unknown := [name for name in names if name not in tools]:
        raise ValueError(f"{where}.allowed_tools names '{unknown[0][:80]}'; '{label}' has {_listed(tools)}.")
    to_approve = _tools_to_approve(entry.get("require_approval"), f"{where}.require_approval", tools)
    return [McpTool(label=label, name=name, tool=tools[name], needs_approval=name in to_approve) for name in tools
            if name in names]  # fmt: skip


def _tools_to_approve(rule: object, where: str, tools: Mapping[str, FunctionTool]) -> set[str]:
    """The tools that wait for an approval: all of them unless the request says otherwise, as OpenAI has it."""
    if rule is None or rule == "always":
        return set(tools)
    if rule == "never":
        return set()
    if not isinstance(rule, Mapping) or not set(rule) <= {"always", "never"} or not rule:
        raise ValueError(f"{where} is {rule!r:.80}; expected 'always', 'never', or an object of them with tool_names.")
    always = _names(rule["always"], f"{where}.always") if rule.get("always") is not None else None
    never = _names(rule["never"], f"{where}.never") if rule.get("never") is not None else None
    tool_names = set(tools) if always is None else set(always)  # "never" alone: all others wait
    return tool_names - set(never or ())


def _names(value: object, where: str) -> list[str]:
    """A list of names, or such a filter."""
    names = value.get("tool_names") if isinstance(value, Mapping) and set(value) == {"tool_names"} else value
    if not isinstance(names, Sequence) or isinstance(names, str) or not all(isinstance(one, str) for one in names):
        raise ValueError(f"{where} is {value!r:.80}; expected names of tools, as a list or as tool_names.")
    return list(names)


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


async def run_mcp(tool: McpTool, arguments: Mapping[str, JSON], call_id: str, tracing: Tracing | None) -> Outcome:
    """Runs a tool. Whatever it raises is its result; a task that is cancelled cancels the call."""
    cancel = Cancel()
    with nullcontext() if tracing is None else tracing.tool(tool.name, call_id):
        try:
            check_arguments(arguments, tool.function["parameters"])
            if tool.tool.arun is not None:
                value = await tool.tool.arun(arguments, cancel)
            else:
                value = await run_in_thread(lambda thread: tool.tool.run(arguments, thread))
            text = value_text(value)
        except asyncio.CancelledError:
            cancel.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # a tool's: for the model to know of
            return Outcome(text=f"error: {error_text(error)}", is_error=True)
    return Outcome(text=text, is_error=False)


def list_item(item_id: str, label: str, tools: Sequence[McpTool]) -> dict[str, Any]:
    """What a server has."""
    shown = [{"name": one.name, "description": one.function.get("description") or None,
              "input_schema": one.function["parameters"], "annotations": None}
             for one in tools]  # fmt: skip
    return {"type": "mcp_list_tools", "id": item_id, "server_label": label, "tools": shown, "error": None}


def run_item(
    item_id: str,
    tool: McpTool,
    arguments: str,
    outcome: Outcome | None,
    *,
    status: str | None = None,
    approval: str | None = None,
) -> dict[str, Any]:
    """A call, and what it gave. outcome: None while it runs; approval: the id of the request that was approved."""
    item: dict[str, Any] = {"type": "mcp_call", "id": item_id, "server_label": tool.label, "name": tool.name,
                            "arguments": arguments, "approval_request_id": approval, "output": None, "error": None,
                            "status": status or "in_progress"}  # fmt: skip
    if outcome is None:
        return item
    if outcome.is_error:
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": outcome.text}]}
        return {**item, "error": error, "status": "failed"}
    return {**item, "output": outcome.text, "status": "completed"}


def result_text(item: Mapping[str, Any]) -> str:
    """What the model reads of a call's item."""
    if isinstance(output := item.get("output"), str):
        return output
    error = item.get("error")
    content = error.get("content") if isinstance(error, Mapping) else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return f"error: {json.dumps(error, ensure_ascii=False)}" if error else "error: the call has no result."
