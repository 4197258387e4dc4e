"""Reasoning apart from the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.tools.harmony import HarmonyReader
from embedllm.tools.reasoning import ThinkReader, think_tags
from tests.tools.test_calls import parted, source

TAGS = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("reply", "is_open", "reasoning", "text"),
    [
        ("<think>\nAdd.\n</think>\n\n21", False, "Add.", "21"),
        ("\n<think>a\n\nb</think>21", False, "a\n\nb", "21"),
        ("<think>\n\n</think>\n\n21", False, "", "21"),
        ("Add.</think>\n21\n", True, "Add.", "21\n"),
        ("<think>Add.</think>21", True, "Add.", "21"),  # the model repeats the prompt's tag
        ("<think>Ad", False, "Ad", ""),  # cut off
        (" 21, no <think>x</think>", False, "", " 21, no <think>x</think>"),
        ("<thin", False, "", "<thin"),
        ("", False, "", ""),
    ],
)
def test_what_stands_between_the_tags_is_reasoning(reply: str, is_open: bool, reasoning: str, text: str) -> None:
    for size in (1, 2, 5, 100):
        reading = ThinkReader(TAGS, is_open=is_open)
        parts = parted(reading, [reply[at : at + size] for at in range(0, len(reply), size)])
        assert (parts.reasoning, parts.text) == (reasoning, text), size


def test_reasoning_comes_as_it_is_written() -> None:
    reading = ThinkReader(TAGS)
    assert reading.push("<think>\nFirst").reasoning == "First"
    assert reading.push(" this</thi").reasoning == " this"
    assert reading.push("nk>\n").text == ""
    assert reading.push("Yes").text == "Yes"


@given(st.text(alphabet="<think>/ \nab", max_size=50), st.integers(1, 9), st.booleans())
def test_pieces_do_not_matter(reply: str, size: int, is_open: bool) -> None:
    pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
    whole = parted(ThinkReader(TAGS, is_open=is_open), [reply])
    assert parted(ThinkReader(TAGS, is_open=is_open), pieces) == whole


def test_the_analysis_channel_is_reasoning() -> None:
    reply = "<|channel|>analysis<|message|>Add.<|end|><|start|>assistant<|channel|>final<|message|>21"
    for size in (1, 4, 200):
        parts = parted(HarmonyReader(), [reply[at : at + size] for at in range(0, len(reply), size)])
        assert (parts.reasoning, parts.text) == ("Add.", "21")


def test_templates_tell_whether_a_model_thinks() -> None:
    assert think_tags([source("qwen3")]) == think_tags([source("deepseek_r1")]) == TAGS
    assert think_tags([source("chatml")]) is None
