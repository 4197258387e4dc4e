"""The conformance suite of the worker's clients: requests in their order, and what comes of each with any client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LONG = "1 2 3 4 5 6 7 8 9 10 11 12"  # the demo goes on with this for ever
ASKED: list[Any] = [{"role": "user", "content": "list files by size"}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
    "additionalProperties": False}}}  # fmt: skip
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Gda\u0144sk \U0001f600"}},
}
CALLED = [
    *ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "sunny"},
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request, and what is expected of it."""

    name: str
    method: str
    params: Mapping[str, Any] | None = None
    result: Mapping[str, Any] = field(default_factory=dict)  # members that it has, and their values
    error: int | None = None  # its code; None: it is no error
    says: str = ""  # part of the error's message
    data: Mapping[str, Any] = field(default_factory=dict)  # members that the error's data have
    cancel_after: int | None = None  # chunks
    is_raw: bool = False  # not through the typed method, which cannot say it
    has: Sequence[str] = ()  # of the chunks, beside text

    @property
    def sent(self) -> dict[str, Any]:
        """What the drivers read."""
        optional = {"params": self.params, "cancel_after": self.cancel_after, "is_raw": self.is_raw or None}
        return {"method": self.method, **{name: value for name, value in optional.items() if value is not None}}


GREEDY = {"temperature": 0, "max_tokens": 12}
CASES = (
    Case(name="initialize", method="initialize", params={"protocol": 1}, result={"protocol": 1}),
    Case(name="another protocol", method="initialize", params={"protocol": 2}, error=-32602, says="speaks 1"),
    Case(name="no such method", method="explode", params={}, is_raw=True, error=-32601, says="expected one of"),
    Case(name="no model", method="generate", params={"prompt": "a"}, error=-32010, says="Send 'load' first"),
    Case(name="no such folder", method="load", params={"model": "no/such/folder"}, error=-32001, says="no/such/folder",
         data={"kind": "PackageError"}),
    Case(name="no such device", method="load", params={"device": "quantum"}, error=-32002,
         data={"kind": "DeviceUnavailable"}),
    Case(name="load", method="load", params={"model": "demo", "device": ["no-such-device", "cpu"], "threads": 1},
         result={"model": "demo", "context": 2048, "can_chat": True}),
    Case(name="devices", method="devices"),
    Case(name="generate", method="generate", params={"prompt": LONG, **GREEDY},
         result={"finish_reason": "length", "tokens": 12, "tool_calls": [], "device": "cpu"}),
    Case(name="options of all kinds", method="generate",
         params={"prompt": LONG, "temperature": 0.75, "seed": 2**53 - 1, "top_k": 20, "bad_words": [" the"],
                 "logit_bias": {"5": -1.5}, "max_tokens": 8, "stop": ["\n\n"], "timeout": 60, "special": False,
                 "speculate": "off"}),
    Case(name="a list of texts to choose from", method="generate",
         params={"prompt": LONG, "response_format": ["yes", "no"], "temperature": 0}),
    Case(name="chat", method="chat", params={"messages": ASKED, "system": "Be short.", **GREEDY}),
    Case(name="text parts", method="chat",
         params={"messages": [{"role": "user", "content": [{"type": "text", "text": "list files \u2665"}]}], **GREEDY}),
    Case(name="a call of a tool", method="chat", has=("tool_calls", "call_deltas"), result={"text": ""},
         params={"messages": ASKED, "tools": [TOOL], "tool_choice": "required", "temperature": 0}),
    Case(name="a tool by an object", method="chat", has=("tool_calls", "call_deltas"),
         params={"messages": ASKED, "tools": [TOOL], "temperature": 0,
                 "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    Case(name="the result of a tool", method="chat", params={"messages": CALLED, "tools": [TOOL], **GREEDY}),
    Case(name="a schema", method="chat", params={"messages": ASKED, "temperature": 0, "response_format": {
        "type": "json_schema", "json_schema": {"name": "answer", "schema": {
            "type": "object", "properties": {"safe": {"type": "boolean"}}, "required": ["safe"],
            "additionalProperties": False}}}}),
    Case(name="cancelled while it runs", method="generate", cancel_after=2,
         params={"prompt": LONG, "temperature": 0, "max_tokens": 1900}, result={"finish_reason": "cancelled"}),
    Case(name="cancelled at once", method="generate", cancel_after=0,
         params={"prompt": LONG, "temperature": 0, "max_tokens": 1900}, result={"finish_reason": "cancelled"}),
    Case(name="a wrong type", method="chat", params={"messages": "hello"}, is_raw=True, error=-32602,
         says="expected the type array", data={"kind": "InvalidRequest", "param": "messages"}),
    Case(name="no such parameter", method="generate", params={"prompt": "a", "temprature": 1}, is_raw=True,
         error=-32602, says="The nearest is 'temperature'", data={"param": "temprature"}),
    Case(name="nothing that is required", method="chat", params={}, is_raw=True, error=-32602,
         says="'messages' is missing"),
    Case(name="out of range", method="generate", params={"prompt": "a", "temperature": -1}, error=-32602,
         says="temperature"),
    Case(name="too long", method="generate", params={"prompt": "word " * 5000}, error=-32004, data={"limit": 2048}),
    Case(name="no such adapter", method="generate", params={"prompt": "a", "adapter": "x"}, error=-32602,
         says="without adapters"),
    Case(name="unload", method="unload"),
    Case(name="after unload", method="chat", params={"messages": ASKED}, error=-32010),
    Case(name="shutdown", method="shutdown"),
)  # fmt: skip
