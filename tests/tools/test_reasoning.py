"""Reasoning apart from the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.tools.channels import ChannelReader
from embedllm.tools.reasoning import REASONING, ReasoningFormat, ThinkReader, reasoning_by_signs
from embedllm.tools.reply_parser import ReplyFormat, reply_reader
from tests.support.tool_formats import format_named
from tests.tools.test_calls import TEMPLATES, parted

TAGS = next(row for row in REASONING if row.opening == "<think>")


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
        parts = parted(
            ChannelReader(format_named("harmony"), {}), [reply[at : at + size] for at in range(0, len(reply), size)]
        )
        assert (parts.reasoning, parts.text) == ("Add.", "21")


def test_templates_tell_whether_a_model_thinks() -> None:
    found = {
        name: (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8") for name in ("qwen3", "deepseek_r1", "chatml")
    }
    assert reasoning_by_signs([found["qwen3"]]) == reasoning_by_signs([found["deepseek_r1"]]) == TAGS
    assert reasoning_by_signs([found["chatml"]]) is None


REPLIES = {
    "<|channel>thought\n": "<|channel>thought\nAdd.\n<channel|>21",
    "<seed:think>": "<seed:think>Add.</seed:think>\n21",
    "<|START_THINKING|>": "<|START_THINKING|>Add.<|END_THINKING|><|START_RESPONSE|>21<|END_RESPONSE|>",
    "<mm:think>": "<mm:think>Add.</mm:think>21",
    "<ifm|think>": "<ifm|think>\nAdd.</ifm|think>21",
    "<|inner_prefix|>": "<|inner_prefix|>Add.<|inner_suffix|>21",
    "<|open|>think<|sep|>": "<|open|>think<|sep|>Add."
    "<|close|>think<|sep|><|open|>response<|sep|>21<|close|>response<|sep|>",
    "<|think|>": "<|think|>Add.<|end|><|begin|>assistant<|content|>21",
    "Here are my reasoning steps:\n": "Here are my reasoning steps:\nAdd.\n[BEGIN FINAL RESPONSE]\n21",
    "<think>": "<think>\nAdd.\n</think>\n\n21",
    "[THINK]": "[THINK]Add.[/THINK]21",
    "<thinking>": "<thinking>Add.</thinking>21",
}


@pytest.mark.parametrize("written", REASONING, ids=lambda row: row.closing)
def test_each_family_has_its_own_marks(written: ReasoningFormat) -> None:
    reply = REPLIES[written.opening]
    for size in (1, 3, len(reply)):
        parts = parted(ThinkReader(written), [reply[at : at + size] for at in range(0, len(reply), size)])
        assert (parts.reasoning, parts.text) == ("Add.", "21"), size


CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("reply", "reasoning", "text", "calls"),
    [
        (f"Add.\n{CALL}", "Add.", "", ["add"]),  # the model does not end its thoughts
        (f"I may say {CALL}, or not.</think>{CALL}", f"I may say {CALL}, or not.", "", ["add"]),
        ("I may say <tool_call>, or not.", "I may say <tool_call>, or not.", "", []),
        ("Add.\n<tool_call>{", "Add.\n<tool_call>{", "", []),
        (f"Add.\n{CALL.replace('add', 'other')}", f"Add.\n{CALL.replace('add', 'other')}", "", []),
    ],
)
def test_a_call_in_thoughts_that_do_not_end_counts_where_it_can_be_read(
    reply: str, reasoning: str, text: str, calls: list[str]
) -> None:
    written = ReplyFormat(calls=format_named("hermes"), reasoning=TAGS)
    for size in (1, 4, len(reply)):
        reading = reply_reader(written, "<|im_start|>assistant\n<think>\n", {"add": {}})
        assert reading is not None
        parts = parted(reading, [reply[at : at + size] for at in range(0, len(reply), size)])
        assert (parts.reasoning, parts.text, [call.name for call in parts.tool_calls]) == (reasoning, text, calls), size
