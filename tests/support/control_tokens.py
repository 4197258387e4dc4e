"""Conversations whose contents hold special tokens' texts, for each of the stored templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from embedllm.errors import TemplateError
from embedllm.text.chat_template import ChatTemplate
from tests.text.test_chat_template import EXPECTED, FOLDER, NAMES

_MARK = re.compile(r"<[|\uff5c]?/?[A-Za-z_]{1,24}[|\uff5c]?>|\[/?[A-Z_]{3,24}\]|<\uff5c[^\uff5c>]{1,32}\uff5c>")
_STRUCTURE = ("role", "type", "id", "tool_call_id")


@dataclass(frozen=True)
class Case:
    """One template and one conversation.

    specials: the special tokens' texts, those that the template names. harmless, hostile: the conversation with a text
    added to each content, without and with special tokens in it.
    """

    template: ChatTemplate
    source: str
    title: str
    specials: list[str]
    harmless: dict[str, Any]
    hostile: dict[str, Any]


def cases(names: Iterable[str] = NAMES) -> Iterator[Case]:
    """Stored templates, all of them by default, each with every conversation that it takes."""
    for name in names:
        expected = EXPECTED.read(f"expected/{name}")
        source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        template = ChatTemplate(source, tokens=expected["tokens"], clock=lambda: EXPECTED.CLOCK)
        specials = sorted({*_MARK.findall(source), *expected["tokens"].values(), "<|im_end|>"})
        conversations = EXPECTED.conversations()
        for title, outcome in expected["prompts"].items():
            if isinstance(outcome, str) and title != "hostile":  # that one holds special tokens as it is
                given = conversations[title]
                harmless = _changed(given, " Q" * len(specials) + " end")
                hostile = _changed(given, "".join(f" {special}" for special in specials) + " end")
                try:
                    template.render(**hostile)
                except TemplateError:  # as gpt-oss's does: it wants reasoning apart
                    continue
                yield Case(template, source, f"{name}, {title}", specials, harmless, hostile)


def _changed(value: Any, added: str, key: str = "") -> Any:  # noqa: ANN401 # JSON of any kind
    """A conversation with a text at the end of each content."""
    if isinstance(value, dict):
        return {name: item if name in _STRUCTURE else _changed(item, added, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_changed(item, added, key) for item in value]
    return value + added if isinstance(value, str) and key in ("content", "text", "description", "sky") else value
