"""A model that says what the test wrote, and the calls that it can write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from embedllm import Model
from embedllm.backends.base import Engine
from embedllm.generation.defaults import Defaults
from embedllm.package.package import Package
from embedllm.sampling.options import Sampling
from embedllm.text.chat_template import ChatTemplate
from embedllm.text.content_marks import RenderedPrompt
from tests.support.fakes import END, VOCABULARY, Bytes, FakeEngine

TEMPLATE = (Path(__file__).parents[1] / "templates" / "qwen3.jinja").read_text(encoding="utf-8")
CHATML = (Path(__file__).parents[1] / "templates" / "chatml.jinja").read_text(encoding="utf-8")


class Codec(Bytes):
    """Bytes, and what a Model asks besides."""

    named = {"eos_token": "<end>"}  # noqa: RUF012

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        return self.encode(prompt.text, special=False)

    def token_id(self, text: str) -> int | None:
        return END if text == "<end>" else None


class Folder:
    """What is used of a package."""

    name = "scripted"
    architecture = SimpleNamespace(vocabulary=VOCABULARY)
    stop_tokens = frozenset({END})

    def check_generates(self) -> None:
        """It does."""


def scripted(
    *replies: str, template: str = TEMPLATE, max_running: int = 16, max_waiting: int = 16, context: int = 100_000
) -> tuple[Model, list[str]]:
    """A model that gives these replies in turn, and the prompts that it was given."""
    prompts: list[str] = []
    left = list(replies)
    now = b""
    at = 0

    def next_token(tokens: Sequence[int]) -> int:
        nonlocal now, at
        if at == 0:
            prompts.append(bytes(token for token in tokens if token != END).decode())
            now = left.pop(0).encode()
        at += 1
        if at > len(now):
            at = 0
            return END
        return now[at - 1]

    engine = FakeEngine(next_token, context=context, chunk=context)
    defaults = Defaults(sampling=Sampling(temperature=0.0), max_tokens=None)
    model = Model(cast("Package", Folder()), cast("Engine", engine), tokenizer=Codec(), defaults=defaults,
                  template=ChatTemplate(template), max_running=max_running, max_waiting=max_waiting)  # fmt: skip
    return model, prompts


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
