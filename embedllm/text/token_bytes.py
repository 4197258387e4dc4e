"""The bytes that each token of a vocabulary stands for, as its tokenizer's decoder makes them; for grammars.

Standard library only. The twin of bindings_web/src/grammar/vocabulary.js.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embedllm.errors import PackageError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
REPLACEMENT = "\ufffd"  # what bytes are decoded to that are no whole character
_FOLLOWED = {"ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"}

Decoder = Mapping[str, Any]  # the object "decoder" of tokenizer.json, which has no schema


def token_bytes(vocabulary: Mapping[str, int], added: Mapping[int, str], decoder: Decoder | None) -> list[bytes]:
    """The bytes of each token by its id; none for an id that no token has.

    vocabulary: spelling -> id. added: those tokens whose spelling is their text, whatever the decoder does.
    Raises PackageError for a decoder whose bytes are not known.
    """
    to_bytes = _spelling(decoder)
    table = [b""] * (1 + max([*vocabulary.values(), *added], default=-1))
    for piece, token in vocabulary.items():
        table[token] = to_bytes(piece)
    for token, text in added.items():
        table[token] = text.encode()
    return table


def is_byte_token(spelling: str) -> bool:
    """Whether it is spelled "<0xE6>": what a run of them stands for is decided by all of it."""
    return _BYTE_TOKEN.fullmatch(spelling) is not None


def appends_texts(decoder: Decoder | None) -> bool:
    """Whether this decoder joins the texts of tokens, whatever their neighbours are, but for the first one's space.

    Bytes that are only part of a character aside.
    """
    steps = _steps(decoder)
    kinds = {step["type"] for step in steps}
    ends = any(step["type"] == "Strip" and step["stop"] for step in steps)
    return kinds == {"ByteLevel"} or (bool(kinds) and kinds <= _FOLLOWED and not ends)


def _spelling(decoder: Decoder | None) -> Callable[[str], bytes]:
    """How this decoder makes bytes of a spelling."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return _byte_level
    if not steps or set(kinds) - _FOLLOWED:
        raise PackageError(
            f"the tokenizer's decoder is {', '.join(kinds) or 'missing'}; a grammar reads those of ByteLevel, "
            "Metaspace, or Replace with ByteFallback, Fuse and Strip. Ask without response_format."
        )
    replaced: list[tuple[str, str]] = []
    for step in steps:
        # Fuse changes nothing; Strip takes a space off the reply's first token
        if step["type"] == "Metaspace":
            replaced.append((step.get("replacement", "\u2581"), " "))
        if step["type"] == "Replace" and isinstance(step["pattern"].get("String"), str):
            replaced.append((step["pattern"]["String"], step["content"]))
    has_bytes = "ByteFallback" in kinds

    def to_bytes(piece: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(piece) if has_bytes else None
        if byte:
            return bytes([int(byte[1], 16)])
        for before, after in replaced:
            piece = piece.replace(before, after)
        return piece.encode()

    return to_bytes


def _steps(decoder: Decoder | None) -> Sequence[Decoder]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _alphabet() -> dict[str, int]:
    """GPT-2's: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = {byte for byte in range(256) if 33 <= byte <= 126 or (byte >= 161 and byte != 173)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, piece))
    except KeyError:
        return piece.encode()  # as the decoder does: what is not of that alphabet is itself
