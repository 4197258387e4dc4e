"""The content of a message with images: a list of OpenAI's parts; without, one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from embedllm.types import JSON

Piece: TypeAlias = str | Mapping[str, JSON]  # a text, or an image_part


def image_part(url: str) -> dict[str, JSON]:
    """Of a data URL, which is checked when the prompt is made; addresses and paths are refused there."""
    return {"type": "image_url", "image_url": {"url": url}}


def content_of(pieces: Sequence[Piece]) -> JSON:
    """Texts that follow each other are one, with an empty line between."""
    parts: list[JSON] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            parts.append({"type": "text", "text": "\n\n".join(texts)})
            texts.clear()

    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        flush()
        parts.append(dict(piece))
    if not parts:
        return "\n\n".join(texts)
    flush()
    return parts
