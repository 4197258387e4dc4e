"""A text in windows: what of it the models read, all the same tokens. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.files.jsonl import fault, read_objects

if TYPE_CHECKING:
    from embedllm.text.protocols import TextCodec

_BLOCK = 1 << 20  # bytes of a plain text that are tokenized in one call, plus the rest of the line
_DOCUMENT = '{"text": "..."}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Pieces of a text, of `size` tokens each."""

    pieces: tuple[tuple[int, ...], ...]
    size: int
    left_out: int  # tokens of the documents that were read to their end, and fill no window


def read_windows(path: Path, tokenizer: TextCodec, *, size: int, limit: int) -> Windows:
    """The first windows of a file, enough for `limit` tokens; 0: all.

    path: .jsonl has documents, a line each: {"text": "..."}; anything else is one document. Each document is cut into
    windows from its beginning, and the shorter rest is left out. Where the tokenizer begins a text with a token (BOS),
    each window does, in place of one of the text's.
    Raises ValueError for what is no text, has none, or is too short for a window; OSError.
    """
    start = begins_with(tokenizer)
    pieces: list[tuple[int, ...]] = []
    left_out = longest = 0
    for document in _documents(path, tokenizer):
        remainder = length = 0
        for piece in _cut(document, size - len(start)):
            length += len(piece)
            remainder = len(piece)
            if remainder == size - len(start):
                pieces.append((*start, *piece))
                remainder = 0
            if limit and len(pieces) * size >= limit:
                return Windows(pieces=tuple(pieces), size=size, left_out=left_out)
        left_out += remainder
        longest = max(longest, length)
    if not longest:
        raise ValueError(f"'{path}' holds no text; expected plain UTF-8, or in a .jsonl a line each: {_DOCUMENT}.")
    if not pieces:
        raise ValueError(
            f"'{path}' is too short: its longest document has {longest} tokens, a window {size}. Take a longer text "
            "or a smaller window."
        )
    return Windows(pieces=tuple(pieces), size=size, left_out=left_out)


def begins_with(tokenizer: TextCodec) -> tuple[int, ...]:
    """The token that the tokenizer itself puts before a text, if it does."""
    bare, whole = (tokenizer.encode("a", special=special) for special in (False, True))
    return tuple(whole[:1]) if whole[0] != bare[0] and whole[0] in tokenizer.special_tokens else ()


def _cut(document: Iterable[list[int]], size: int) -> Iterator[list[int]]:
    """The tokens of a document in pieces of a given size; the last one may be shorter."""
    buffer: list[int] = []
    for tokens in document:
        buffer += tokens
        whole = len(buffer) // size * size
        yield from (buffer[at : at + size] for at in range(0, whole, size))
        buffer = buffer[whole:]
    if buffer:
        yield buffer


def _documents(path: Path, tokenizer: TextCodec) -> Iterator[Iterable[list[int]]]:
    """The tokens of each document, in one or several lists."""
    if path.suffix.lower() != ".jsonl":
        yield (tokenizer.encode(block, special=False) for block in _blocks(path))
        return
    for number, record in read_objects(path, _DOCUMENT):
        text = record.get("text")
        if not isinstance(text, str):
            raise fault(path, number, f'has {"no" if text is None else "a wrong"} "text"', _DOCUMENT)
        yield [tokenizer.encode(text, special=False)]


def _blocks(path: Path) -> Iterator[str]:
    """A plain text in pieces that end with a line: few enough that a cut between them changes nothing measurable."""
    place = 0
    with path.open("rb") as file:
        while data := file.read(_BLOCK):
            data += file.readline()
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"'{path}' is no UTF-8 text ({error.reason} at byte {place + error.start}). Convert it, or give "
                    "another file."
                ) from error
            yield text if place else text.removeprefix("\ufeff")
            place += len(data)
