"""Calls that a model may make, of tools whose schemas a grammar follows, and of others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import pytest

import embedllm
from embedllm.generation.request_builder import RequestBuilder
from embedllm.sampling.options import Sampling
from embedllm.sampling.structured.llguidance import TokenGrammars
from embedllm.text.chat_template import ChatTemplate
from embedllm.tools.generic_prompt import TemplateGaps
from embedllm.tools.optional_calls import OptionalCalls
from embedllm.tools.reply_parser import ReplyFormat
from tests.support.guided_calls import END, allows, grammars
from tests.support.scripted import CHATML
from tests.support.tool_formats import format_named

if TYPE_CHECKING:
    from embedllm.text.tokenizer import Tokenizer

GAPS = TemplateGaps(hides_tools=frozenset({False, True}), hides_calls=True)
WRITTEN = ReplyFormat(calls=format_named("json"), reasoning=None, gaps=GAPS)


def tool(**value: Any) -> dict[str, Any]:  # noqa: ANN401  # a JSON schema
    return {"type": "object", "properties": {"a": value}, "required": ["a"]}


TOOLS = {
    "find": tool(type="string"),
    "tag": tool(type="array", items={"type": "string"}, uniqueItems=True),  # refused by name
    "100%": tool(type="string", pattern="^(?!x)[a-z]+$"),  # refused by the engine
}


def is_taken(calls: OptionalCalls, text: str) -> bool:
    constraint = calls.constraint(TOOLS, frozenset({END}))
    assert constraint is not None
    return allows(constraint, text)


def test_a_tool_whose_schema_nothing_follows_may_be_called_with_any_object(caplog: pytest.LogCaptureFixture) -> None:
    calls = OptionalCalls("tiny", WRITTEN, lambda text: None, grammars())
    with caplog.at_level(logging.WARNING, logger="embedllm"):
        assert is_taken(calls, '{"name": "tag", "arguments": {"a": ["x", "x"], "b": 1}}')
        assert is_taken(calls, '{"name": "100%", "arguments": {"a": "y"}}')
        assert is_taken(calls, "It is here.")
        assert is_taken(calls, '{"name": "find", "arguments": {"a": "x"}}')
        assert not is_taken(calls, '{"name": "find", "arguments": {"a": 1}}')
        assert not is_taken(calls, '{"name": "tag", "arguments": ["x"]}')
    reasons = [record.getMessage().split(", as its schema cannot be followed: ") for record in caplog.records]
    assert [what for what, _ in reasons] == [
        "'tiny' may call the tool 'tag' with any arguments", "'tiny' may call the tool '100%' with any arguments"
    ]  # fmt: skip
    assert "'uniqueItems' at #/properties/a is not supported" in reasons[0][1]


def test_a_request_may_offer_such_a_tool() -> None:
    with embedllm.load("demo") as demo:
        builder = RequestBuilder(demo.package, demo.tokenizer, None, template=ChatTemplate(CHATML),
                                 grammars=TokenGrammars(cast("Tokenizer", demo.tokenizer)))  # fmt: skip
        offered = [{"type": "function", "function": {"name": name, "parameters": TOOLS[name]}} for name in TOOLS]
        ask = [{"role": "user", "content": "hi"}]
        assert builder.request(ask, Sampling(), tools=offered).constraint is not None
        with pytest.raises(ValueError, match="'uniqueItems' at #/properties/a is not supported"):
            builder.request(ask, Sampling(), tools=offered, tool_choice="tag")
