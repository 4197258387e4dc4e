"""OpenAI's reasoning effort in chat completions, as what chat templates read."""

from __future__ import annotations

from typing import Any

import pytest

from embedllm.openai.request import own_options

OFF = {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ({"reasoning_effort": "none"}, OFF),
        ({"reasoning_effort": "minimal"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "a template's own"}, {"reasoning_effort": "a template's own"}),
        ({"reasoning_effort": "none", "variables": {"thinking": True}}, {**OFF, "thinking": True}),
        ({"reasoning_effort": "low", "variables": {"x": 1}}, {"reasoning_effort": "low", "x": 1}),
    ],
)
def test_an_effort_is_what_templates_read(given: dict[str, Any], variables: dict[str, Any]) -> None:
    assert own_options(given).get("variables") == variables
