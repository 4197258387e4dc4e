"""What a reply consists of beside its text: tool calls and reasoning, and the message that they make together."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON

Parameters: TypeAlias = "Mapping[str, Mapping[str, JSON]]"  # the schemas of tools' arguments, by the tools' names

_ID_CHARACTERS = 9  # what Mistral's templates demand; the others take any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool that the model wrote. One that has a problem is not to be run."""

    id: str
    """What the message with the result names as its tool_call_id; made here where the model wrote none."""
    name: str
    """The tool's name; "" where it cannot be read."""
    arguments: Mapping[str, JSON] = field(default_factory=dict)
    """By the tool's names of them; empty where there is a problem."""
    problem: str = ""
    """What is wrong with what the model wrote; "" when the call may be run."""
    text: str = ""
    """What the model wrote, where there is a problem."""

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A piece of a call while the model writes it, as OpenAI's streams have it. The whole call follows as a ToolCall.

    The pieces of "arguments" make up a JSON object, unless the last one has a problem.
    """

    index: int
    """Of the call in the reply, from 0 on."""
    id: str
    """The call's own, in each of its pieces."""
    name: str
    """The tool's name, in each piece."""
    arguments: str = ""
    """The next piece of the arguments' JSON text."""
    problem: str = ""
    """What is wrong with the whole call; in its last piece."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A piece of a reply, by what it is."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_deltas: tuple[CallDelta, ...] = ()


class ReplyReader(Protocol):
    """Parts one reply, which comes in pieces."""

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece, and why the reply ended with it; what is certain now."""
        ...


def new_id() -> str:
    """An id for a call that the model gave none."""
    return os.urandom(_ID_CHARACTERS).hex()[:_ID_CHARACTERS]


def assistant_message(text: str, reasoning: str, tool_calls: Sequence[ToolCall]) -> dict[str, JSON]:
    """The reply as a message to append: OpenAI's, but that arguments are objects, as chat templates expect them.

    A call that could not be read has what the model wrote as its one argument "text".
    """
    message: dict[str, JSON] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if tool_calls:
        message["tool_calls"] = [_entry(call) for call in tool_calls]
    return message


def result_message(call: ToolCall, result: str) -> dict[str, JSON]:
    """The result of a call as a message to append."""
    return {"role": "tool", "tool_call_id": call.id, "name": call.name or "unreadable", "content": result}


def _entry(call: ToolCall) -> JSON:
    arguments: JSON = {"text": call.text} if call.problem and not call.arguments else dict(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name or "unreadable", "arguments": arguments}}


def tool_parameters(tools: Sequence[Mapping[str, JSON]]) -> Parameters:
    """The schema of each tool's arguments, from the tools' own schemas. Raises ValueError for one without a name."""
    schemas: dict[str, Mapping[str, JSON]] = {}
    for place, tool in enumerate(tools):
        inner = tool.get("function", tool)
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(name, str) or not name:
            raise ValueError(
                f'tools[{place}] has no name; expected {{"type": "function", "function": {{"name": ...}}}}.'
            )
        if name in schemas:
            raise ValueError(f"tools[{place}] is named '{name}', as another one is.")
        parameters = inner.get("parameters")
        schemas[name] = parameters if isinstance(parameters, Mapping) else {}
    return schemas


def for_template(
    messages: Sequence[Mapping[str, JSON]], *, arguments_as_text: bool, one_call: bool
) -> list[Mapping[str, JSON]]:
    """The messages with tool calls as a template can take them.

    arguments_as_text: as JSON text, otherwise as objects; whichever they were before.
    one_call: a message of several calls becomes one for each, with its result after it; such templates also show
    either the content or the reasoning beside a call, and get both as reasoning.
    """
    shown: list[Mapping[str, JSON]] = []
    results = [message for message in messages if isinstance(message, Mapping) and message.get("role") == "tool"]
    moved: list[Mapping[str, JSON]] = []
    for message in messages:
        if any(message is other for other in moved):
            continue
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        if not isinstance(calls, list) or not calls:
            shown.append(message)
            continue
        template_calls = [_with_arguments(call, arguments_as_text) for call in calls]
        if not one_call:
            shown.append({**message, "tool_calls": template_calls})
            continue
        for place, call in enumerate(template_calls):
            first = _thought(message) if place == 0 else {"role": "assistant", "content": ""}
            answers = [result for result in results if _answers(result, call)]
            shown += [{**first, "tool_calls": [call]}, *answers]
            moved += answers
    return shown


def _thought(message: Mapping[str, JSON]) -> dict[str, JSON]:
    fields = {name: value for name, value in message.items() if name != "tool_calls"}
    if message.get("content") and message.get("reasoning_content"):
        fields |= {"content": "", "reasoning_content": f"{message['reasoning_content']}\n{message['content']}"}
    return fields


def _answers(result: Mapping[str, JSON], call: JSON) -> bool:
    return isinstance(call, dict) and "id" in call and result.get("tool_call_id") == call["id"]


def _with_arguments(call: JSON, as_text: bool) -> JSON:
    """A call with its arguments as text or as an object; as it is where they are neither."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if as_text and isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return call
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {**cast("dict[str, JSON]", call), "function": {**function, "arguments": arguments}}
