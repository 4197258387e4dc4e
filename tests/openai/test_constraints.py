"""What other servers' clients write to hold a reply to a form."""

from __future__ import annotations

import json

import pytest

from embedllm.openai.constraints import with_response_format
from embedllm.openai.schema import InvalidRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}


@pytest.mark.parametrize(
    ("given", "response_format"),
    [
        ({"json_schema": SCHEMA}, AS_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, AS_SCHEMA),
        ({"guided_regex": "a+"}, {"type": "regex", "regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"type": "choices", "choices": ["a", "b"]}),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}}, AS_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, {"type": "json_object"}),
        ({"structured_outputs": {"choice": ["a"]}, "grammar": ""}, {"type": "choices", "choices": ["a"]}),
    ],
)
def test_they_are_a_response_format(given: dict[str, object], response_format: object) -> None:
    assert with_response_format({"n": 1, **given}) == {"n": 1, "response_format": response_format}


@pytest.mark.parametrize(
    "given", [{}, {"grammar": ""}, {"structured_outputs": {}}, {"structured_outputs": {"json": None}}]
)
def test_what_is_empty_is_not_given(given: dict[str, object]) -> None:
    """Clients of llama.cpp send an empty grammar."""
    assert with_response_format({"n": 1, **given}) == {"n": 1}
    own = {"response_format": ["yes", "no"]}
    assert with_response_format({**own, **given}) == own


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grammar": 'root ::= "a"'}, "'grammar' is not followed; expected a response_format"),
        ({"structured_outputs": {"structural_tag": "x"}}, "'structured_outputs.structural_tag' is not followed"),
        ({"guided_json": "{"}, "'guided_json' is a text that is no JSON"),
        ({"json_schema": SCHEMA, "response_format": {"type": "text"}}, "'json_schema' and 'response_format' both"),
        (
            {"guided_regex": "a", "structured_outputs": {"regex": "a"}},
            "'guided_regex' and 'structured_outputs.regex' both",
        ),
    ],
)
def test_what_would_be_another_reply_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        with_response_format(given)
