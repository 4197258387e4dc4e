"""Templates that leave tools out: what they are given instead, and that nothing of a conversation is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embedllm.text.chat_template import ChatTemplate
from embedllm.tools.generic_prompt import TemplateGaps
from embedllm.tools.selection import reply_format
from tests.support.tool_templates import TOKENS

TEMPLATES = Path(__file__).parents[1] / "templates"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "find", "description": "finds", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": {"a": 1}}}
NO_PLACE = TemplateGaps(hides_tools=frozenset({False, True}), hides_calls=True)
USER = {"role": "user", "content": "Where?"}


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), tokens=TOKENS)


@pytest.mark.parametrize(
    ("name", "hides_tools", "hides_calls", "has_system"),
    [
        ("qwen3", (), False, True),
        ("llama3_1", (), False, True),
        ("chatml", (False, True), True, True),
        ("mistral_v7", (False,), False, True),  # shows them behind a system message only
        ("deepseek_v3_1", (False, True), False, True),  # calls only
        ("gemma2", (False,), True, False),  # refuses a system message
        ("mistral_v1", (False,), True, False),
    ],
)
def test_what_templates_leave_out(
    name: str, hides_tools: tuple[bool, ...], hides_calls: bool, has_system: bool
) -> None:
    gaps = reply_format(template_of(name)).gaps
    assert gaps == TemplateGaps(hides_tools=frozenset(hides_tools), hides_calls=hides_calls, has_system=has_system)


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_no_template_drops_tools_calls_or_results(path: Path) -> None:
    """Where the template does not show them, the messages do; the roles alternate as before."""
    template = template_of(path.stem)
    gaps = reply_format(template).gaps
    asked: list[Any] = [USER]
    if gaps.hide_tools_of(asked):
        assert '"name": "find"' in template.render(gaps.filled(asked, [TOOL["function"]]))
    if gaps.hides_calls:
        said = [
            *asked,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "in a box"},
        ]
        shown = template.render(gaps.filled([*said, {"role": "user", "content": "Which?"}], [TOOL]))
        assert all(text in shown for text in ('{"name": "find", "arguments": {"a": 1}}', "in a box", "Which?"))


def test_tools_come_behind_what_the_system_message_says() -> None:
    (system, user) = NO_PLACE.filled([{"role": "system", "content": "Be brief."}, USER], [TOOL])
    assert str(system["content"]).startswith("Be brief.\n\nYou can call these tools.")
    assert '{"name": "find", "description": "finds", ' in str(system["content"])
    assert user == USER
    assert NO_PLACE.filled([USER], [TOOL])[0]["role"] == "system"


def test_without_a_system_role_tools_come_before_the_first_question() -> None:
    gaps = TemplateGaps(hides_tools=frozenset({False}), hides_calls=True, has_system=False)
    (user,) = gaps.filled([USER], [TOOL])
    assert str(user["content"]).startswith("You can call these tools.")
    assert str(user["content"]).endswith("\n\nWhere?")
    (of_parts,) = gaps.filled([{"role": "user", "content": [{"type": "text", "text": "Where?"}]}], [TOOL])
    parts: Any = of_parts["content"]
    assert [part["type"] for part in parts] == ["text", "text"]
    assert parts[1]["text"] == "Where?"


def test_calls_and_results_become_text_of_alternating_roles() -> None:
    calls = [CALL, {"id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"b": "x"}'}}]
    shown = NO_PLACE.filled(
        [
            USER,
            {"role": "assistant", "content": "I look.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c2", "content": "nothing"},
            {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "in a box"},
            {"role": "user", "content": "Which?"},
            {"role": "user", "content": "Well?"},
        ],
        [],
    )
    assert shown == [
        USER,
        {
            "role": "assistant",
            "content": 'I look.\n{"name": "find", "arguments": {"a": 1}}\n{"name": "look", "arguments": {"b": "x"}}',
        },
        {"role": "user", "content": "Result of look:\nnothing\n\nResult of find:\nin a box\n\nWhich?"},
        {"role": "user", "content": "Well?"},
    ]


def test_messages_of_a_template_that_shows_calls_stay_as_they_are() -> None:
    said: list[Any] = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    assert TemplateGaps().filled(said, []) == said
    described = TemplateGaps(hides_tools=frozenset({False})).filled(said, [TOOL])
    assert described[1:] == said
    assert "To call a tool" not in str(described[0])  # the model writes calls as its template shows them
