"""Conversations whose contents hold special tokens' texts, for each of the stored templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from embedllm.errors import TemplateError
from embedllm.text.chat_template import ChatTemplate
from tests.text.test_chat_template import EXPECTED, FOLDER, NAMES

_MARK = re.compile(r"<[|｜]?/?[A-Za-z_]{1,24}[|｜]?>|\[/?[A-Z_]{3,24}\]|<｜[^｜>]{1,32}｜>")
_STRUCTURE = ("role", "type", "id", "tool_call_id")


@dataclass(frozen=True)
class Case:
    """One template and one conversation.

    specials: the special tokens' texts, those that the template names. harmless, hostile: the conversation with a text
    added to each content, without and with special tokens in it. prompt: renders one of them.
    """

    template: ChatTemplate
    title: str
    specials: list[str]
    harmless: dict[str, Any]
    hostile: dict[str, Any]


def cases() -> Iterator[Case]:
    """Every stored template with every conversation that it takes."""
    for name in NAMES:
        expected = EXPECTED.read(f"expected/{name}")
        source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        template = ChatTemplate(source, tokens=expected["tokens"], clock=lambda: EXPECTED.CLOCK)
        specials = sorted({*_MARK.findall(source), *expected["tokens"].values(), "<|im_end|>"})
        conversations = EXPECTED.conversations()
        for title, outcome in expected["prompts"].items():
            if isinstance(outcome, str) and title != "hostile":  # that one holds special tokens as it is
                given = conversations[title]
                harmless = _changed(given, lambda text: text + " Q" * len(specials) + " end")
                hostile = _changed(given, lambda text: text + "".join(f" {special}" for special in specials) + " end")
                try:
                    template.render(**hostile)
                except TemplateError:  # as gpt-oss's does: it wants reasoning apart
                    continue
                yield Case(template, f"{name}, {title}", specials, harmless, hostile)


def _changed(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    """A conversation with each content changed."""
    if isinstance(value, dict):
        return {name: item if name in _STRUCTURE else _changed(item, change, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_changed(item, change, key) for item in value]
    return change(value) if isinstance(value, str) and key in ("content", "text", "description", "sky") else value
