"""A Responses request -> messages and options of this library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedllm.openai.reasoning_effort import LEVELS, NONE, effort_variables
from embedllm.server.endpoint import ToolServers
from embedllm.server.responses.items import Approval, MessageBuilder
from embedllm.server.responses.tools import Tools, read_choice

if TYPE_CHECKING:
    from embedllm.generation.options import PromptOptions
    from embedllm.text.chat_template import Message

_UNKNOWN = ("conversation", "prompt")  # state and texts that are kept elsewhere
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """What a request stands for here."""

    messages: list[Message]
    options: PromptOptions
    tools: Tools
    one_call: bool
    has_logprobs: bool
    packs_reasoning: bool  # the client keeps the state
    warnings: list[str]
    listed: set[str]  # MCP servers whose tools the conversation has told already
    approved: list[Approval]  # calls that are to run before the reply


def responses_request(
    body: Mapping[str, Any],
    earlier: Sequence[Mapping[str, Any]],
    lookup: Callable[[str], Mapping[str, Any] | None] = lambda _: None,
    servers: ToolServers | None = None,
) -> ResponsesRequest:
    """body: its types on the first level are checked. earlier: the items of the conversation before.

    lookup: a stored item by its id. servers: tools that the server runs. Raises ValueError for what cannot be followed.
    """
    if odd := [name for name in _UNKNOWN if name in body]:
        raise ValueError(f"{odd[0]} names what is kept by OpenAI; send the items themselves, or previous_response_id.")
    talk = MessageBuilder(body.get("instructions"), lookup)
    talk.add(earlier)
    talk.add(body.get("input", []))
    messages = talk.messages()
    if not messages:
        raise ValueError("input is empty; expected text or at least one item.")
    tools = Tools(servers=servers or {})
    tools.add(body.get("tools", []))
    tools.add(talk.tools, "input.additional_tools")
    choice = read_choice(body.get("tool_choice"), tools)
    warnings = [*tools.warnings, *talk.warnings, *_unfollowed(body)]
    approved = [one for one in talk.approvals.values() if one.is_due]
    if odd := [one for one in approved if one.name not in tools.mcp or tools.mcp[one.name].label != one.label]:
        raise ValueError(f"'{odd[0].name}' of the MCP server '{odd[0].label}' was approved, and is none of the tools "
                         "of this request; send them with each request.")  # fmt: skip
    include = body.get("include", ())
    options: PromptOptions = {}
    for name in ("temperature", "top_p", "seed"):
        if name in body:
            options[name] = body[name]
    if "max_output_tokens" in body:
        options["max_tokens"] = body["max_output_tokens"]
    if tools.functions:
        options["tools"] = tools.functions
        options["tool_choice"] = choice
    if variables := _variables(body.get("reasoning")):
        options["variables"] = variables
    if (form := _format(body.get("text"))) is not None:
        options["response_format"] = form
    has_logprobs = _LOGPROBS in include or body.get("top_logprobs", 0) > 0
    if has_logprobs:
        options["logprobs"] = body.get("top_logprobs", 0)
    return ResponsesRequest(
        messages=messages,
        options=options,
        tools=tools,
        one_call=body.get("parallel_tool_calls") is False,
        has_logprobs=has_logprobs,
        packs_reasoning=_ENCRYPTED in include or body.get("store") is False,
        warnings=warnings,
        listed=talk.listed,
        approved=approved,
    )


def _unfollowed(body: Mapping[str, Any]) -> list[str]:
    warnings = []
    if body.get("background"):
        warnings.append("background has no effect: the response is complete when it comes")
    if body.get("truncation") == "auto":
        warnings.append("truncation 'auto' has no effect: input that exceeds the context is refused")
    return warnings


def _variables(reasoning: object) -> dict[str, Any]:
    """For chat templates: gpt-oss's reasoning_effort, and what turns the thinking of Qwen's and DeepSeek's off."""
    effort = reasoning.get("effort") if isinstance(reasoning, Mapping) else None
    if effort is None:
        return {}
    if not isinstance(effort, str) or effort not in (NONE, *LEVELS):
        raise ValueError(f"reasoning.effort is {effort!r:.80}; expected 'none' or one of {', '.join(LEVELS)}.")
    return effort_variables(LEVELS.get(effort, effort))


def _format(text: object) -> dict[str, Any] | None:
    """response_format as chat completions have it; None: any text."""
    form = text.get("format") if isinstance(text, Mapping) else None
    if form is None or (isinstance(form, Mapping) and form.get("type") == "text"):
        return None
    if isinstance(form, Mapping) and form.get("type") == "json_object":
        return {"type": "json_object"}
    if isinstance(form, Mapping) and form.get("type") == "json_schema" and isinstance(form.get("schema"), Mapping):
        return {"type": "json_schema", "json_schema": {"name": form.get("name", "reply"), "schema": form["schema"]}}
    raise ValueError(f"text.format is {form!r:.80}; expected 'text', 'json_object', or 'json_schema' with a schema.")
