"""Renders made-up calls by a chat template and reads them back, for every template that can be had."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from embedllm.text.chat_template import ChatTemplate
from embedllm.tools.calls import Parts
from embedllm.tools.reply_parser import ReplyFormat, reply_reader
from embedllm.tools.selection import reply_format
from embedllm.tools.template_probe import MadeCall, Shown, TemplateProbe

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True).filter(lambda name: name not in KEPT_WORDS)
KEPT_WORDS = ("all", "true", "false", "null", "none", "self", "user", "assistant", "item")
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12) | st.sampled_from(
    ["</tool_call>", 'a "quote"', "it's", "back\\slash", "[TOOL_CALLS]", "two\nlines", "{", "```", "<b>x</b>", "a, b)"]
)
SCALARS = st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6, allow_nan=False) | TEXTS
VALUES = st.recursive(
    st.none() | SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=3)
IDS = ("aB3dE6gH9", "bC4eF7hI0", "cD5fG8iJ1")


def schema_of(value: object) -> dict[str, Any]:
    """The schema of one value."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {name: schema_of(item) for name, item in value.items()}}
    if isinstance(value, list):
        kinds = [schema_of(item) for item in value]
        return {"type": "array", "items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}}
    names: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return {"type": names.get(type(value), "null")}


def made_calls(drawn: Sequence[tuple[str, dict[str, Any]]], written: ReplyFormat) -> list[MadeCall]:
    """Calls as this format can say them: where texts stand as they are, they cannot hold what ends them."""
    style = written.calls.shapes[0].style
    calls: dict[str, MadeCall] = {}
    for (name, arguments), made_id in zip(drawn, IDS, strict=False):
        said = {key: _sayable(value, written, style) for key, value in arguments.items()}
        if style == "tree":
            said = {key: value for key, value in said.items() if value is not None}
        calls.setdefault(name, MadeCall(name, said, made_id))
    return list(calls.values())[: 1 if written.one_call else None]


def _sayable(value: Any, written: ReplyFormat, style: str) -> Any:  # noqa: ANN401 # any JSON
    if isinstance(value, str) and style in ("pairs", "tree", "gemma"):
        return value.replace("<", "(").strip() or "x" if style == "tree" else value.replace("</", "(/")
    if style != "tree":
        return value
    if isinstance(value, dict):  # no word for null in it, none for an empty object
        inner = {key: _sayable(item, written, style) for key, item in value.items() if item is not None}
        return inner or {"a": "b"}
    if isinstance(value, list):  # nor for elements of several kinds
        return [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
    return value


def shown(template: ChatTemplate, written: ReplyFormat, calls: Sequence[MadeCall], reasoning: str) -> Shown | None:
    """The calls as a template shows them in a history."""
    return TemplateProbe(template).calls(list(calls), as_text=written.arguments_as_text, reasoning=reasoning)


def read(written: ReplyFormat, shown: Shown, calls: Sequence[MadeCall], size: int) -> list[Parts]:
    """The reply in pieces of this many characters, read; once as it is shown, once without the marks at its end."""
    parameters = {
        call.name: {"type": "object", "properties": {key: schema_of(value) for key, value in call.arguments.items()}}
        for call in calls
    }
    found: list[Parts] = []
    for reply in (shown.reply, shown.bare):
        reader = reply_reader(written, shown.prompt, parameters)
        assert reader is not None
        pieces = [reader.push(reply[at : at + size]) for at in range(0, len(reply), size)]
        found.append(joined([*pieces, reader.push("", "stop")]))
    return found


def joined(pieces: Sequence[Parts]) -> Parts:
    """The whole of a reply."""
    return Parts(
        "".join(part.text for part in pieces),
        "".join(part.reasoning for part in pieces),
        tuple(call for part in pieces for call in part.tool_calls),
        tuple(delta for part in pieces for delta in part.call_deltas),
    )


def open_template(text: str) -> tuple[ChatTemplate, ReplyFormat]:
    """A template, and how its model writes replies."""
    template = ChatTemplate(text, tokens=TOKENS)
    return template, reply_format(template)


def check_round_trip(source: str, drawn: Sequence[tuple[str, dict[str, Any]]], reasoning: str, size: int) -> bool:
    """Renders calls, and reads them in pieces of this many characters; False where the template shows none.

    reasoning: before them, where the template shows it.
    """
    template, written = _opened(source)
    calls = made_calls(drawn, written)
    whole = shown(template, written, calls, reasoning)
    if whole is None or not all(call.name in whole.reply for call in calls):
        return False
    found = read(written, whole, calls, size)
    said = [(call.name, json.dumps(dict(call.arguments), sort_keys=True)) for call in calls]
    for parts in found:
        names = [(call.name, json.dumps(dict(call.arguments), sort_keys=True)) for call in parts.tool_calls]
        if names == said and not any(call.problem for call in parts.tool_calls):
            _check_deltas(parts)
            if reasoning and reasoning in whole.reply:
                assert parts.reasoning == reasoning, whole
            return True
    raise AssertionError(f"{said} is read from {whole.reply!r} as {found[0]}")


_opened = cache(open_template)


def _check_deltas(parts: Parts) -> None:
    """The pieces of each call make up its arguments."""
    for place, call in enumerate(parts.tool_calls):
        pieces = [delta for delta in parts.call_deltas if delta.index == place]
        assert json.loads("".join(piece.arguments for piece in pieces)) == dict(call.arguments)
        assert {piece.id for piece in pieces} == {call.id}
        assert {piece.name for piece in pieces} == {call.name}
