"""The arguments of a call while it is written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.tools.stream_parser import CallReader
from tests.support.tool_formats import format_named
from tests.support.tool_templates import joined
from tests.tools.test_calls import reader


def test_json_comes_as_it_is_written() -> None:
    reading = CallReader(format_named("hermes"), {})
    assert reading.push('<tool_call>\n{"name": "f"').call_deltas == ()
    (first,) = reading.push(', "arguments": {"a": "long te').call_deltas
    assert (first.index, first.name, first.arguments) == (0, "f", '{"a": "long te')
    (second,) = reading.push('xt \\"q').call_deltas
    assert (second.arguments, second.id) == ('xt \\"q', first.id)
    last = reading.push('"}}\n</tool_call>')
    assert "".join(piece.arguments for piece in last.call_deltas) == '"}'
    assert [call.id for call in last.tool_calls] == [first.id]


def test_other_arguments_come_one_by_one() -> None:
    reading = CallReader(format_named("glm4_5"), {})
    pieces = (
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x",
        "</arg_value>\n<arg_key>",
        "b</arg_key>\n<arg_value>3",
        "</arg_value>\n</tool_call>",
    )
    found = ["".join(delta.arguments for delta in reading.push(piece).call_deltas) for piece in pieces]
    assert found == ["{", '"a": "x"', "", ', "b": 3}']


def test_a_call_that_cannot_be_read_says_so_at_its_end() -> None:
    parts = reader("hermes").push('<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>')
    assert "twice" in parts.call_deltas[-1].problem
    assert parts.call_deltas[-1].problem == parts.tool_calls[0].problem


@pytest.mark.parametrize("name", ["hermes", "jamba", "apertus", "mistral", "harmony"])
@given(values=st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers() | st.none(), max_size=3),
       indent=st.sampled_from([None, 1]), size=st.integers(1, 30))  # fmt: skip
def test_the_pieces_make_up_the_arguments(name: str, values: dict[str, object], indent: int | None, size: int) -> None:
    text = json.dumps(values, indent=indent)
    written = format_named(name)
    call = written.calls[0].replace("$name", "f").replace("$arguments", text).removeprefix("<|start|>assistant")
    reply = written.section[0] + call + written.section[1]
    reading = reader(name)
    pieces = [reading.push(reply[at : at + size]) for at in range(0, len(reply), size)]
    whole = joined([*pieces, reading.push("", "stop")])
    assert [dict(call.arguments) for call in whole.tool_calls] == [values]
    assert json.loads("".join(delta.arguments for delta in whole.call_deltas)) == values
