"""Tools on a published model whose chat template does not show them: SmolLM2 135M, from a PyPI package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import embedllm
from tests.support.real import SMOLLM2, published_file

pytestmark = [pytest.mark.real, pytest.mark.slow]

ASK: list[Any] = [{"role": "user", "content": "What is 17 plus 25? Use the tool."}]


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: first
        b: second
    """
    return a + b


@pytest.fixture(scope="module")
def model() -> Iterator[embedllm.Model]:
    with embedllm.load(published_file(SMOLLM2, "**/*.gguf"), device="cpu") as loaded:
        yield loaded


def test_the_prompt_describes_the_tools(model: embedllm.Model) -> None:
    assert '{"name": "add", "description": "Adds two numbers."' in model.prompt(ASK, tools=[add])


def test_a_call_that_it_must_make_is_made_and_its_result_is_in_the_next_prompt(model: embedllm.Model) -> None:
    reply = embedllm.run_tools(model, ASK, [add], tool_choice="required", max_rounds=1, temperature=0.0, max_tokens=60)
    (outcome,) = reply.outcomes
    assert (outcome.call.arguments, outcome.result) == ({"a": 17, "b": 25}, "42")
    prompt = model.prompt([*ASK, *reply.messages], tools=[add])
    assert "<|im_start|>user\nResult of add:\n42<|im_end|>" in prompt


def test_with_the_choice_its_own_it_answers_in_text_or_with_a_whole_call(model: embedllm.Model) -> None:
    for seed in range(6):
        reply = model.chat(ASK, tools=[add], temperature=1.5, seed=seed, max_tokens=60)
        assert all(not call.problem or reply.finish_reason == "length" for call in reply.tool_calls)
        assert not reply.text.lstrip().startswith("{")
