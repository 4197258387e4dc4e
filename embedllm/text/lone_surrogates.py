"""Half a surrogate pair in a text: it is no character, and no tokenizer, grammar or UTF-8 takes it."""

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


def replace_surrogates(text: str) -> str:
    """The text with "?" for each half of a pair, as names of files have them for bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
