"""Tools for chat templates that leave them out: described in a message, calls and results as plain text.

The twin of bindings_web/src/package/generic_tools.js, which writes the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from embedllm.text.prompt import SYSTEM_ROLES, role_of

if TYPE_CHECKING:
    from embedllm.text.chat_template import Message
    from embedllm.types import JSON

_INTRODUCTION = "You can call these tools. Each line describes one, with a JSON schema of its arguments:"
_HOW = (
    'To call a tool, reply with one JSON object and nothing else: {"name": the tool\'s name, "arguments": '
    "{its arguments}}. The next message has its result. When no tool is needed, answer in plain text."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateGaps:
    """What of tools a chat template leaves out of its prompts, so that it has to be in the messages."""

    hides_tools: frozenset[bool] = frozenset()  # where messages begin with a system message (True), or without (False)
    hides_calls: bool = False  # calls and results; always False where tools are shown
    has_system: bool = True  # it takes a system message

    def hide_tools_of(self, messages: Sequence[Message]) -> bool:
        """Whether tools that go to the template with these messages would be dropped."""
        return _begins_with_system(messages) in self.hides_tools

    def filled(self, messages: Sequence[Message], tools: Sequence[Mapping[str, JSON]]) -> list[Message]:
        """The messages with what the template leaves out. tools: JSON schemas that it does not show; mostly none."""
        shown = _calls_as_text(messages) if self.hides_calls else list(messages)
        if not tools:
            return shown
        described = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
        text = "\n".join([_INTRODUCTION, *described, *(["", _HOW] if self.hides_calls else [])])
        if _begins_with_system(shown):
            return [_with_content(shown[0], "\n\n", text, is_before=False), *shown[1:]]
        if self.has_system:
            return [{"role": "system", "content": text}, *shown]
        place = next((place for place, message in enumerate(shown) if role_of(message) == "user"), None)
        if place is None:
            return [{"role": "user", "content": text}, *shown]
        return [*shown[:place], _with_content(shown[place], "\n\n", text, is_before=True), *shown[place + 1 :]]

    def without_calls(self) -> TemplateGaps:
        """As it is when the template shows no calls that can be read, and so has to be given none."""
        return replace(self, hides_calls=bool(self.hides_tools))


def _begins_with_system(messages: Sequence[Message]) -> bool:
    return isinstance(messages, Sequence) and bool(messages) and role_of(messages[0]) in SYSTEM_ROLES


def _calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Calls as the text of the assistant's messages, results as messages of the user, one for neighbours.

    A user's message directly after a result is joined to it: many templates want the roles to alternate.
    """
    names: dict[JSON, JSON] = {}
    shown: list[Message] = []
    is_result = False
    for message in messages:
        role = role_of(message)
        calls = message.get("tool_calls") if role == "assistant" else None
        if isinstance(calls, list) and calls:
            texts = [_call_text(call, names) for call in calls]
            rest: Message = {name: value for name, value in message.items() if name != "tool_calls"}
            message = _with_content(rest, "\n", "\n".join(texts), is_before=False)
        elif role == "tool":
            call_id = message.get("tool_call_id")
            name = message.get("name") or (names.get(call_id) if isinstance(call_id, str) else None)
            heading = f"Result of {name}:\n" if name else "Result:\n"
            message = _with_content({"role": "user", "content": message.get("content")}, "", heading, is_before=True)
        if is_result and role_of(message) == "user":
            message = _joined(shown.pop(), message)
        is_result = role == "tool"
        shown.append(message)
    return shown


def _call_text(call: JSON, names: dict[JSON, JSON]) -> str:
    """A call as the JSON that the model was asked for. names: gets its name by its id."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return json.dumps(call, ensure_ascii=False)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # what cannot be read stays text
            arguments = cast("JSON", json.loads(arguments))
    if isinstance(call, dict) and isinstance(call_id := call.get("id"), str):
        names[call_id] = function.get("name")
    return json.dumps({"name": function.get("name"), "arguments": arguments or {}}, ensure_ascii=False)


def _with_content(message: Message, between: str, text: str, *, is_before: bool) -> Message:
    """The message with more text before or behind its content, which may be a list of parts."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        part = {"type": "text", "text": text + between if is_before else between + text}
        return {**message, "content": [part, *content] if is_before else [*content, part]}
    pieces = [text, content] if is_before else [content, text]
    return {**message, "content": between.join(piece for piece in pieces if isinstance(piece, str) and piece)}


def _joined(first: Message, second: Message) -> Message:
    """Two messages of one role as one."""
    content = second.get("content")
    if isinstance(content, list | tuple):
        before = first.get("content")
        parts = list(before) if isinstance(before, list | tuple) else [{"type": "text", "text": before}]
        return {**second, "content": [*parts, {"type": "text", "text": "\n\n"}, *content]}
    return _with_content(first, "\n\n", content if isinstance(content, str) else "", is_before=False)


NO_GAPS = TemplateGaps()
