"""A call that the model must write: each format's grammar, by a random model, read by the format's own reader."""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from embedllm.sampling.structured.lark import followed_lark
from embedllm.sampling.structured.response_format import Source
from embedllm.text.function_schema import argument_reader, tool_schema
from embedllm.tools.arguments import check_arguments
from embedllm.tools.calls import tool_parameters
from embedllm.tools.families import FORMATS
from embedllm.tools.formats import ToolFormat
from embedllm.tools.generic_prompt import TemplateGaps
from embedllm.tools.reasoning import REASONING
from embedllm.tools.reply_parser import ReplyFormat
from embedllm.tools.tool_choice import call_grammar, choice_name, optional_call_grammar
from tests.support.guided_calls import END, allows, grammars, guided_call, random_parameters
from tests.support.tool_formats import format_named

TOOL: dict[str, Any] = {"find": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}


def no_token(_: str) -> int | None:
    return None


def grammar(
    name: str,
    tools: dict[str, Any] = TOOL,
    choice: str = "required",
    *,
    special: Callable[[str], int | None] = no_token,
    prompt: str = "",
    stop_tokens: frozenset[int] = frozenset(),
) -> Source:
    thinks = next(row for row in REASONING if row.opening == "<think>")
    written = ReplyFormat(calls=format_named(name), reasoning=thinks)
    return call_grammar(choice, written, tools, special, prompt=prompt, stop_tokens=stop_tokens)


@pytest.mark.parametrize("written", FORMATS, ids=lambda row: row.name)
def test_a_random_models_calls_can_be_read_and_are_valid(written: ToolFormat) -> None:
    whole = 0
    for seed in range(3):
        numbers = random.Random(seed)
        tools = {"get_thing": random_parameters(numbers), "other_one": random_parameters(numbers)}
        text, parts, reason = guided_call(written, tools, "required" if seed % 2 else "other_one", seed, limit=600)
        if reason == "length":
            continue
        whole += 1
        (call,) = parts.tool_calls
        assert (call.problem, parts.text.strip()) == ("", ""), text
        assert call.name in (tools if seed % 2 else ["other_one"])
        check_arguments(call.arguments, tools[call.name])
        assert json.loads("".join(delta.arguments for delta in parts.call_deltas)) == call.arguments
    assert whole


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "pythonic", "gemma4", "minimax_m3"])  # each notation
def test_an_argument_that_may_be_none_is_held_to_its_type_or_null(name: str) -> None:
    """As tool_schema() writes `int | None` and `list[str] | None`."""
    properties = {
        "a": {"type": "integer", "minimum": 0, "maximum": 9, "nullable": True},
        "b": {"type": "array", "items": {"type": "boolean", "nullable": False}, "maxItems": 2, "nullable": True},
    }
    tools = {"f": {"type": "object", "properties": properties, "required": ["a", "b"]}}
    found = set()
    for seed in range(12):
        _, parts, reason = guided_call(format_named(name), tools, "f", seed, limit=600)
        if reason != "length":
            (call,) = parts.tool_calls
            assert call.problem == ""
            check_arguments(call.arguments, tools["f"])
            found.add((call.arguments["a"] is None, call.arguments["b"] is None))
    assert len(found) > 1


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green light"


@dataclass
class Spot:
    colour: Colour
    size: int | None = None


def paint(spot: Spot, again: int | None, under: Colour | None = None) -> None:
    """Paints.

    Args:
        spot: Where.
        again: How often.
        under: What was there.
    """


@pytest.mark.parametrize("written", FORMATS, ids=lambda row: row.name)
def test_a_call_of_a_function_has_arguments_of_its_type_hints(written: ToolFormat) -> None:
    whole = 0
    for seed in range(4):
        text, parts, reason = guided_call(
            written, dict(tool_parameters([tool_schema(paint)])), "paint", seed, limit=600
        )
        if reason == "length":
            continue
        whole += 1
        (call,) = parts.tool_calls
        assert call.problem == "", text
        arguments = argument_reader(paint)(call.arguments)
        assert isinstance(arguments["spot"], Spot)
        assert isinstance(arguments["spot"].colour, Colour)
        assert isinstance(arguments["again"], int | None)
        assert isinstance(arguments.get("under"), Colour | None)
    assert whole


def test_a_tool_that_takes_any_object_is_held_to_no_empty_one() -> None:
    """As tools of MCP servers have it; a tool without a schema has no arguments."""
    assert '%json {"type": "object"}' in grammar("hermes", {"work": {"type": "object"}}).text
    assert '"additionalProperties": false' in grammar("hermes", {"work": {}}).text


def test_special_tokens_of_a_call_are_tokens_and_those_that_end_a_reply_are_left_out() -> None:
    ids = {"<|tool_call_begin|>": 7, "<|tool_call_end|>": 8, "<|call|>": 9}
    text = grammar("kimi_k2", special=ids.get).text
    assert '<[7]> "functions."' in text
    assert "<[8]>" in text
    harmony = grammar("harmony", special=ids.get, prompt="...<|start|>assistant", stop_tokens=frozenset({9})).text
    assert '" to=functions." "find" "<|channel|>commentary json<|message|>"' in harmony
    assert "<[9]>" not in harmony


def test_a_grammar_goes_on_where_the_prompt_ends() -> None:
    assert '">>>"' in grammar("functionary_v3_2").text
    assert '">>>' not in grammar("functionary_v3_2", prompt="assistant\n\n>>>").text
    assert "</think>" not in grammar("hermes", prompt="<think>\n\n</think>\n\n").text
    thinking = grammar("hermes", prompt="<|im_start|>assistant\n<think>\n").text
    assert thinking.index("</think>") < thinking.index("<tool_call>")


def test_the_grammar_of_a_schema_that_refers_to_itself_ends() -> None:
    node = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
    tools = {"find": {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}}
    for name in ("hermes", "gemma4", "minimax_m3", "qwen3_coder", "lfm2"):
        followed_lark(grammar(name, tools).text, options={})


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("glm4_5", {"properties": {"a": {"not": {}}}}, "'not'"),
        ("gemma4", {"anyOf": [{}]}, "'anyOf'"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "pattern"),
        ("qwen3_coder", {"properties": {'"a"': {"type": "string"}}}, "cannot be named"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(name: str, schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grammar(name, {"find": {"type": "object", **schema}})


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ('{"name": "find", "arguments": {"a": "x"}}', True),
        ("It is here {a}.", True),
        ("\nOne\n\nTwo", True),
        ("", True),
        ('{"name": "find", "arguments": {}}', False),
        ('{"name": "other", "arguments": {"a": "x"}}', False),
        ('{"a": 1}', False),
        ('{"name": "find", "arguments": {"a": "x"}} and so on', False),
    ],
)
def test_where_a_template_shows_no_calls_a_reply_is_a_whole_call_or_text(text: str, is_allowed: bool) -> None:
    gaps = TemplateGaps(hides_tools=frozenset({False, True}), hides_calls=True)
    source = optional_call_grammar(ReplyFormat(calls=format_named("json"), reasoning=None, gaps=gaps), TOOL, no_token)
    assert source is not None
    assert allows(grammars().constraint(source, frozenset({END})), text) == is_allowed


def test_a_model_that_was_trained_to_call_or_thinks_first_is_not_held_by_a_grammar() -> None:
    gaps = TemplateGaps(hides_tools=frozenset({False, True}), hides_calls=True)
    shows = ReplyFormat(calls=format_named("hermes"), reasoning=None)
    thinks = ReplyFormat(calls=format_named("json"), reasoning=REASONING[0], gaps=gaps)
    assert optional_call_grammar(shows, TOOL, no_token) is None
    assert optional_call_grammar(thinks, TOOL, no_token) is None


def test_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="'other'"):
        grammar("hermes", choice="other")
    with pytest.raises(ValueError, match="there are no tools"):
        grammar("hermes", {})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("auto", "auto"),
        ({"type": "function", "function": {"name": "now"}}, "now"),
        ({"type": "function", "name": "now"}, "now"),  # as OpenAI's responses have it
    ],
)
def test_a_choice_may_be_openai_s_object(given: object, name: str) -> None:
    assert choice_name(given) == name


@pytest.mark.parametrize("given", [None, 5, {}, {"type": "function"}, {"type": "file_search"}, {"function": "now"}])
def test_other_choices_are_refused(given: object) -> None:
    with pytest.raises(ValueError, match="expected 'auto', 'none', 'required', a tool's name"):
        choice_name(given)
