"""Items of a Responses conversation -> messages of this library."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedllm.model.tool_reply import DECLINED
from embedllm.server.image_parts import Piece, content_of, image_part
from embedllm.server.responses.mcp_tools import result_text
from embedllm.server.responses.tools import function_name

if TYPE_CHECKING:
    from embedllm.text.chat_template import Message
    from embedllm.types import JSON

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_MARK = "embedllm:"  # begins the encrypted_content that is made here
_UNANSWERED = "error: the call was not approved."
_NO_IMAGE = "[an image, which this model cannot see]"
# parts of the results of tools by their types, for which the model reads a note: else all their base64
_UNREADABLE = {
    "input_image": _NO_IMAGE,
    "image": _NO_IMAGE,
    "input_file": "[a file, which this model cannot read]",
    "input_audio": "[audio, which this model cannot hear]",
}


def pack_reasoning(text: str) -> str:
    """What a client that keeps the state itself sends back as a reasoning item's encrypted_content; it is no secret."""
    return _MARK + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _unpacked(value: object) -> str:
    if not isinstance(value, str) or not value.startswith(_MARK):
        return ""  # another server's
    try:
        return base64.b64decode(value[len(_MARK) :], validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return ""


@dataclass(slots=True, kw_only=True)
class Approval:
    """A call of an MCP server's tool that waits for an approval, or did."""

    id: str
    label: str
    name: str
    arguments: str  # JSON
    values: dict[str, Any]  # the same
    is_approved: bool = False
    is_done: bool = False
    message: dict[str, Any] | None = None  # its result, as the model reads it

    @property
    def is_due(self) -> bool:
        """Whether it is to run now."""
        return self.is_approved and not self.is_done


class MessageBuilder:
    """Takes items in their order, and gives the messages that they make."""

    def __init__(self, instructions: str | None, lookup: Callable[[str], Mapping[str, Any] | None]) -> None:
        """lookup: a stored item by its id."""
        self.tools: list[Any] = []
        """Of items that add some."""
        self.warnings: list[str] = []
        self.listed: set[str] = set()
        """MCP servers whose tools were told."""
        self.approvals: dict[str, Approval] = {}
        """By their ids, in their order."""
        self._results: list[Message] = []  # of calls of the open reply
        self._system = [instructions] if instructions else []
        self._messages: list[Message] = []
        self._reply: dict[str, Any] | None = None  # the model's message that the items go on with
        self._names: dict[str, str] = {}  # of tools by the ids of their calls
        self._lookup = lookup

    def add(self, items: object) -> None:
        """Text, or a list of items. Raises ValueError for what is neither."""
        if isinstance(items, str):
            self._say("user", items)
            return
        if not isinstance(items, Sequence):
            raise ValueError(f"input is {items!r:.80}; expected text or a list of items.")
        for place, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise ValueError(f"input.{place} is {item!r:.80}; expected an object.")
            self._add(item, f"input.{place}")

    def messages(self) -> list[Message]:
        """All of them. What the system says first is one message, as most templates take only one."""
        self._leave_unanswered()
        self._flush()
        system: list[Message] = [{"role": "system", "content": "\n\n".join(self._system)}] if self._system else []
        return [*system, *self._messages]

    def _add(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type", "item_reference" if "id" in item and "role" not in item else "message")
        if not isinstance(kind, str):
            raise ValueError(f"{where}.type is {kind!r:.80}; expected text.")
        if kind == "message":
            self._add_message(item, where)
        elif kind == "reasoning":
            self._think(_thought(item, where))
        elif kind in _CALLS:
            self._call(item, where, *_CALLS[kind](item, where))
        elif kind in _OUTPUTS:
            self._flush()
            called = item.get("call_id", item.get("id"))
            if not isinstance(called, str):
                raise ValueError(f"{where}.call_id is {called!r:.80}; expected text.")
            name = self._names.get(called) or function_name(str(item.get("name") or "unknown"), item.get("namespace"))
            text = _output(item.get("output"), f"{where}.output")
            self._messages.append(_result(called, name, text))
        elif kind in _MCP:
            _MCP[kind](self, item, where)
        elif kind == "additional_tools":
            added = item.get("tools") or []
            if not isinstance(added, list):
                raise ValueError(f"{where}.tools is {added!r:.80}; expected a list.")
            self.tools += added
        elif kind == "item_reference":
            stored_item = self._lookup(str(item.get("id")))
            if stored_item is None:
                raise ValueError(f"{where} refers to the item {item.get('id')!r:.80}, which is not stored here.")
            self._add(stored_item, where)
        else:
            self.warnings.append(f"the item '{kind[:80]}' has no effect here and was left out")

    def _add_message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise ValueError(f"{where}.role is {role!r:.80}; expected 'user', 'assistant', 'system' or 'developer'.")
        if role == "user":
            self._flush()
            self._messages.append({"role": role, "content": _user_content(item.get("content"), f"{where}.content")})
            return
        text = _content(item.get("content"), f"{where}.content")
        if _ROLES[role] != "assistant":
            self._say(_ROLES[role], text)
            return
        if self._results or (self._reply and self._reply["content"] and "tool_calls" not in self._reply):
            self._flush()
        self._open()["content"] += text

    def _say(self, role: str, text: str) -> None:
        self._leave_unanswered()
        self._flush()
        if role == "system" and not self._messages:
            self._system.append(text)
        else:
            self._messages.append({"role": role, "content": text})

    def _think(self, text: str) -> None:
        if self._reply is not None and (self._reply["content"] or "tool_calls" in self._reply):
            self._flush()
        if text:
            reply = self._open()
            reply["reasoning_content"] = reply.get("reasoning_content", "") + text

    def _call(self, item: Mapping[str, Any], where: str, name: str, arguments: str) -> None:
        called = item.get("call_id")
        if not isinstance(called, str):
            raise ValueError(f"{where}.call_id is {called!r:.80}; expected text.")
        self._names[called] = name
        call = {"id": called, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open().setdefault("tool_calls", []).append(call)

    def _open(self) -> dict[str, Any]:
        if self._reply is None:
            self._reply = {"role": "assistant", "content": ""}
        return self._reply

    def _flush(self) -> None:
        if self._reply is not None:
            self._messages.append(self._reply)
            self._reply = None
        self._messages += self._results
        self._results = []

    # --- tools of MCP servers, which run here

    def _add_mcp_list_tools(self, item: Mapping[str, Any], where: str) -> None:
        self.listed.add(_text(item.get("server_label"), f"{where}.server_label"))

    def _add_mcp_call(self, item: Mapping[str, Any], where: str) -> None:
        approval = self.approvals.get(str(item.get("approval_request_id")))
        if approval is None:
            called = _text(item.get("id"), f"{where}.id")
            self._call({"call_id": called}, where, *_function_call(item, where))
            self._results.append(_result(called, self._names[called], result_text(item)))
        elif approval.message is None:
            raise ValueError(f"{where} is a call whose approval is not in front of it.")
        else:
            approval.is_done = True
            approval.message["content"] = result_text(item)

    def _add_mcp_approval_request(self, item: Mapping[str, Any], where: str) -> None:
        name, arguments = _function_call(item, where)
        called, label = _text(item.get("id"), f"{where}.id"), _text(item.get("server_label"), f"{where}.server_label")
        if called in self.approvals:
            raise ValueError(f"{where} has the id '{called[:80]}', as an approval request in front of it.")
        try:
            values = json.loads(arguments)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise ValueError(f"{where}.arguments is {arguments!r:.80}; expected the text of a JSON object.")
        self._call({"call_id": called}, where, name, arguments)
        self.approvals[called] = Approval(id=called, label=label, name=name, arguments=arguments, values=values)

    def _add_mcp_approval_response(self, item: Mapping[str, Any], where: str) -> None:
        request_id, approve = item.get("approval_request_id"), item.get("approve")
        approval = self.approvals.get(str(request_id))
        if approval is None or approval.message is not None:
            what = "is not in front of it" if approval is None else "is answered already"
            raise ValueError(f"{where} answers the approval request {request_id!r:.80}, which {what}.")
        if not isinstance(approve, bool):
            raise ValueError(f"{where}.approve is {approve!r:.80}; expected true or false.")
        reason = item.get("reason")
        declined = f"{DECLINED[:-1]}: {reason}" if isinstance(reason, str) and reason else DECLINED
        approval.is_approved = approve
        self._answer(approval, "" if approve else declined)

    def _leave_unanswered(self) -> None:
        """The conversation goes on without an answer."""
        for approval in self.approvals.values():
            if approval.message is None:
                self._answer(approval, _UNANSWERED)

    def _answer(self, approval: Approval, text: str) -> None:
        self._flush()
        approval.message = _result(approval.id, approval.name, text)
        self._messages.append(approval.message)


def _result(called: str, name: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": called, "name": name, "content": text}


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {value!r:.80}; expected text.")
    return value


def _parts(value: object, where: str) -> list[tuple[Mapping[str, Any], str]]:
    if not isinstance(value, Sequence):
        raise ValueError(f"{where} is {value!r:.80}; expected text or a list of parts.")
    for place, part in enumerate(value):
        if not isinstance(part, Mapping):
            raise ValueError(f"{where}.{place} is {part!r:.80}; expected an object.")
    return [(part, f"{where}.{place}") for place, part in enumerate(value)]


def _content(content: object, where: str) -> str:
    """The text of a message."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(_part_text(part, at) for part, at in _parts(content, where))


def _user_content(content: object, where: str) -> JSON:
    """Text, or with images a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    pieces: list[Piece] = []
    for part, at in _parts(content, where):
        if part.get("type") == "input_image":
            if part.get("image_url") is None:
                raise ValueError(f"{at} has no 'image_url'; expected a data URL: data:image/png;base64,...")
            pieces.append(image_part(_text(part["image_url"], f"{at}.image_url")))
        else:
            pieces.append(_part_text(part, at))
    return content_of(pieces)


def _part_text(part: Mapping[str, Any], where: str) -> str:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        return _text(part.get("text"), f"{where}.text")
    if kind == "refusal":
        return _text(part.get("refusal"), f"{where}.refusal")
    raise ValueError(f"{where} is of the type {kind!r:.80}; expected text, or 'input_image' of the user.")


def _output(output: object, where: str) -> str:
    """Of a tool: an image or a file in it is one of many things that came by themselves, so it is no error."""
    if output is None or isinstance(output, str):
        return output or ""
    if isinstance(output, Mapping):
        return json.dumps(output, ensure_ascii=False)
    texts: list[str] = []
    for part, _ in _parts(output, where):
        text = part.get("text")
        if isinstance(text, str):
            texts.append(text)
        elif isinstance(kind := part.get("type"), str) and kind in _UNREADABLE:
            texts.append(_UNREADABLE[kind])
        else:  # what a shell wrote
            texts.append(json.dumps(part, ensure_ascii=False))
    return "\n".join(texts)


def _thought(item: Mapping[str, Any], where: str) -> str:
    """What a reasoning item says: as it is, as it was packed here, or its summary."""
    texts = {name: _content(item.get(name), f"{where}.{name}") for name in ("content", "summary")}
    return texts["content"] or _unpacked(item.get("encrypted_content")) or texts["summary"]


def _function_call(item: Mapping[str, Any], where: str) -> tuple[str, str]:
    name = _text(item.get("name"), f"{where}.name")
    return function_name(name, item.get("namespace")), _text(item.get("arguments"), f"{where}.arguments")


def _custom_call(item: Mapping[str, Any], where: str) -> tuple[str, str]:
    name = _text(item.get("name"), f"{where}.name")
    arguments = {"input": _text(item.get("input"), f"{where}.input")}
    return function_name(name, item.get("namespace")), json.dumps(arguments, ensure_ascii=False)


def _built_in(
    name: str, field: str, without: Sequence[str] = ()
) -> Callable[[Mapping[str, Any], str], tuple[str, str]]:
    """Reads the call of a built-in tool, whose arguments are in an object. without: what the model does not write."""

    def read(item: Mapping[str, Any], where: str) -> tuple[str, str]:
        fields = item.get(field)
        if not isinstance(fields, Mapping):
            raise ValueError(f"{where}.{field} is {fields!r:.80}; expected an object.")
        arguments = {key: value for key, value in fields.items() if key not in without and value is not None}
        return name, json.dumps(arguments, ensure_ascii=False)

    return read


_CALLS: Mapping[str, Callable[[Mapping[str, Any], str], tuple[str, str]]] = {
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "local_shell_call": _built_in("local_shell", "action", ("type", "env", "user")),
    "shell_call": _built_in("shell", "action"),
    "apply_patch_call": _built_in("apply_patch", "operation"),
}
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
            "apply_patch_call_output")  # fmt: skip
_MCP: Mapping[str, Callable[[MessageBuilder, Mapping[str, Any], str], None]] = {
    "mcp_list_tools": MessageBuilder._add_mcp_list_tools,
    "mcp_call": MessageBuilder._add_mcp_call,
    "mcp_approval_request": MessageBuilder._add_mcp_approval_request,
    "mcp_approval_response": MessageBuilder._add_mcp_approval_response,
}
