"""What a chat template makes of made-up replies: how it shows calls and reasoning is how the model writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from embedllm.errors import TemplateError
from embedllm.tools.calls import for_template
from embedllm.tools.generic_prompt import TemplateGaps

if TYPE_CHECKING:
    from embedllm.text.chat_template import ChatTemplate
    from embedllm.types import JSON

QUESTION = "What is known of the seventh item?"
ANSWER = "Nothing is known yet."
THOUGHT = "It is the seventh item that counts."
SYSTEM = "Items are numbered from one."
_MARKS_AT_END = re.compile(r"(?:\s|<[^<>\s]*>|\[/?[A-Z_]+\])*$")


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call to show."""

    name: str
    arguments: Mapping[str, JSON]
    id: str = "aB3dE6gH9"


@dataclass(frozen=True, slots=True)
class Shown:
    """A reply as the template shows it in a history."""

    prompt: str  # before it
    reply: str  # without what ends a turn
    bare: str  # without any mark at its end


class TemplateProbe:
    """Renders made-up conversations; a rendering is None where the template refuses."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._end = ""  # what ends a turn

    def calls(self, calls: Sequence[MadeCall], *, as_text: bool, reasoning: str = "", text: str = "") -> Shown | None:
        """A reply with calls. as_text: their arguments as JSON text."""
        entries: list[JSON] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": cast("JSON", dict(call.arguments))},
            }
            for call in calls
        ]
        message: dict[str, JSON] = {"role": "assistant", "content": text, "tool_calls": entries}
        if reasoning:
            message["reasoning_content"] = reasoning
        shown = for_template([message], arguments_as_text=as_text, one_call=False)
        tools = [_tool(call) for call in calls]
        reply = self._reply(shown[0], tools)
        if reply is None and not reasoning:  # some templates want it with each call
            reply = self._reply({**shown[0], "reasoning_content": THOUGHT}, tools)
        return reply

    def thought(self) -> Shown | None:
        """A reply with reasoning and text."""
        return self._reply({"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}, None)

    def gaps(self) -> TemplateGaps:
        """Whether it shows tools, with a system message and without, and takes such a message."""
        question: dict[str, JSON] = {"role": "user", "content": QUESTION}
        system: dict[str, JSON] = {"role": "system", "content": SYSTEM}
        call = MadeCall("find_item", {"place": "x"})
        shown = {
            begins: self._render([system, question] if begins else [question], [_tool(call)], prompts=True)
            for begins in (False, True)
        }
        return TemplateGaps(
            hides_tools=frozenset(
                begins for begins, text in shown.items() if text is not None and call.name not in text
            ),
            has_system=SYSTEM in (self._render([system, question], None, prompts=True) or ""),
        )

    def _reply(self, message: Mapping[str, JSON], tools: Sequence[Mapping[str, JSON]] | None) -> Shown | None:
        question: dict[str, JSON] = {"role": "user", "content": QUESTION}
        whole = self._render([question, message], tools, prompts=False)
        if whole is None:
            return None
        prefix = self._render([question], tools, prompts=True) or ""
        alike = (n for n, pair in enumerate(zip(prefix, whole, strict=False)) if pair[0] != pair[1])
        begun = prefix[: next(alike, min(len(prefix), len(whole)))]  # it may open or close the thoughts
        befores = [prefix, begun[: max(begun.rfind(end) + 1 for end in ">]\n")], self._render_header(question, tools)]
        befores.append(self._render([question], tools, prompts=False) or "")
        prompt = max((before for before in befores if whole.startswith(before)), key=len)
        if QUESTION not in prompt:
            prompt = whole[: whole.rfind(QUESTION) + len(QUESTION)]
        reply = whole[len(prompt) :]
        bare = _MARKS_AT_END.sub("", reply)
        return Shown(prompt, reply.removesuffix(self._end) if self._end.strip() else reply, bare)

    def _render_header(self, question: Mapping[str, JSON], tools: Sequence[Mapping[str, JSON]] | None) -> str:
        """All that stands before a text of the model."""
        plain = self._render([question, {"role": "assistant", "content": ANSWER}], tools, prompts=False) or ""
        before, answer, self._end = plain.rpartition(ANSWER)
        return before if answer else ""

    def _render(
        self, messages: list[Mapping[str, JSON]], tools: Sequence[Mapping[str, JSON]] | None, *, prompts: bool
    ) -> str | None:
        try:
            return self._template.render(messages, tools=tools, add_generation_prompt=prompts)
        except (TemplateError, ValueError):
            return None


def call_schema(call: MadeCall) -> dict[str, JSON]:
    """The schema of the arguments that a made-up call has."""
    names: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
    properties: dict[str, JSON] = {
        name: {"type": names.get(type(value), "null" if value is None else "object"), "description": "a value"}
        for name, value in call.arguments.items()
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _tool(call: MadeCall) -> dict[str, JSON]:
    return {
        "type": "function",
        "function": {"name": call.name, "description": "finds items", "parameters": call_schema(call)},
    }


def is_equal(arguments: Mapping[str, JSON], call: MadeCall) -> bool:
    """Whether arguments are those of a made-up call, a float and an integer of one value apart."""
    return json.dumps(dict(arguments), sort_keys=True) == json.dumps(dict(call.arguments), sort_keys=True)
