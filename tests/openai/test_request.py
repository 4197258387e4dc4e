"""Requests of OpenAI's chat completions as JSON bodies."""

from __future__ import annotations

from typing import Any

import pytest

from embedllm.openai.request import read_chat_body

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]
ASK = [{"role": "user", "content": "hi"}]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_ones(mode: str) -> None:
    found = read_chat_body({"messages": ASK, "tools": TOOLS, "tool_choice": allowed(mode, "b")})
    assert found.options.get("tools") == TOOLS[1:]
    assert found.options.get("tool_choice") == mode


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (allowed("auto", "c"), "allows 'c', which is none of the tools: 'a', 'b'"),
        (allowed("always", "a"), "'always'; expected 'auto' or 'required'"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": 1}}, "expected a list of tools"),
        ({"type": "allowed_tools"}, "expected a list of tools"),
    ],
)
def test_allowed_tools_that_there_are_not(choice: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_chat_body({"messages": ASK, "tools": TOOLS, "tool_choice": choice})


def test_an_earlier_refusal_is_text_of_the_conversation() -> None:
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I may not."}]}
    found = read_chat_body({"messages": [*ASK, refused, *ASK]})
    assert found.messages[1]["content"] == [{"type": "text", "text": "I may not."}]


def test_no_top_logprobs_need_no_logprobs() -> None:
    found = read_chat_body({"messages": ASK, "logprobs": False, "top_logprobs": 0})
    assert not found.has_logprobs
    with pytest.raises(ValueError, match="logprobs=True"):
        read_chat_body({"messages": ASK, "logprobs": False, "top_logprobs": 1})
