"""The reference of the Python API: current and whole, and help() of each call names its options."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import embedllm
from embedllm.generation.beam_runner import BEAMLESS
from embedllm.generation.options import SAMPLING, PromptOptions, ReplyOptions
from embedllm.openai.request import CreateOptions
from tools import make_python_reference as reference

ON_A_MODEL = ("generate", "generate_batch", "generate_n", "chat", "stream", "stream_n", "agenerate", "astream",
              "aopen_stream", "astream_n", "agenerate_batch", "agenerate_n", "request", "requests",
              "build_request")  # fmt: skip
ON_A_CONVERSATION = ("say", "stream", "asay", "astream", "aopen_stream")
CALLS = (
    *((getattr(embedllm.Model, name), set(PromptOptions.__annotations__)) for name in ON_A_MODEL),
    *((getattr(embedllm.Conversation, name), set(ReplyOptions.__annotations__)) for name in ON_A_CONVERSATION),
    (embedllm.Model.beam_search, set(PromptOptions.__annotations__) - SAMPLING - BEAMLESS),
    (embedllm.run_tools, set(ReplyOptions.__annotations__)),
    (embedllm.arun_tools, set(ReplyOptions.__annotations__)),
    (reference.client.Completions.create, set(CreateOptions.__annotations__)),
)


def test_the_page_is_current() -> None:
    """If it is not: python -m tools.make_python_reference --write"""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.reference_page()


def test_every_public_name_is_on_the_page() -> None:
    grouped = [*(name for names in reference.GROUPS.values() for name in names), *reference.ALIASES]
    assert sorted(grouped) == sorted(embedllm.__all__)


@pytest.mark.parametrize("kind", [value for name in embedllm.__all__ if is_dataclass(value := getattr(embedllm, name))]
                         + list(reference.SHAPES), ids=lambda kind: kind.__name__)  # fmt: skip
def test_every_field_says_what_it_is(kind: Any) -> None:  # noqa: ANN401 # a dataclass
    described = {name for name, _, _, text in reference._attributes(kind) if text.strip(" .")}
    assert {field.name for field in fields(kind)} <= described


@pytest.mark.parametrize(("call", "options"), CALLS, ids=[call.__qualname__ for call, _ in CALLS])
def test_help_of_a_call_names_its_options(call: Any, options: set[str]) -> None:  # noqa: ANN401 # a function
    words = (inspect.getdoc(call) or "").replace(",", " ").replace(".", " ").replace(":", " ").split()
    assert options <= set(words)
