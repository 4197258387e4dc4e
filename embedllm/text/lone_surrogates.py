"""The check that a text is one: half a surrogate pair is no character, and no tokenizer or grammar takes it."""

from __future__ import annotations

import re

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def check_text(text: str, what: str = "the text") -> None:
    """Raises ValueError for half a surrogate pair. what: whose text it is."""
    if not text.isascii() and (odd := _LONE_SURROGATE.search(text)):
        raise ValueError(
            f"{what} has the lone surrogate U+{ord(odd[0]):04X} at character {odd.start()}, which is no text. "
            "It often stands for a byte that was not UTF-8; decode the input with errors='replace'."
        )
