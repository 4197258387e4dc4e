"""One's own documents: the text files of a folder, cut into passages, and the passages that fit a question.

BM25 by bm25s ranks the passages: words, no embeddings, nothing to download.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import bm25s

TEXT_FILES = frozenset({".adoc", ".csv", ".log", ".markdown", ".md", ".org", ".rst", ".tex", ".text", ".txt"})
PASSAGE_CHARACTERS = 800  # about 200 tokens of English
_MOST_FILES = 5000
_LARGEST_BYTES = 4 << 20
_BLOCK = re.compile(r".*?(?:\n\s*\n|\Z)", re.DOTALL)  # a paragraph with the blank lines after it


class UnreadableFile(Exception):
    """A file that is no text, too large, or may not be read."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a document."""

    source: str  # the file, as seen from the folder
    line: int  # where it begins, from 1
    text: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


class Documents:
    """The passages of a folder, ready to be searched."""

    def __init__(self, passages: Sequence[Passage], skipped: Sequence[str] = ()) -> None:
        self.passages = tuple(passages)
        self.skipped = tuple(skipped)  # each with its reason
        words = _words([passage.text for passage in self.passages])
        self._index = bm25s.BM25() if any(words) else None
        if self._index is not None:
            self._index.index(words, show_progress=False)

    @classmethod
    def open(cls, folder: Path) -> Documents:
        """Reads the text files in a folder and in the folders below it; hidden ones are left out."""
        passages: list[Passage] = []
        skipped: list[str] = []
        for count, path in enumerate(walk(folder)):
            name = path.relative_to(folder).as_posix()
            if count == _MOST_FILES:
                skipped.append(f"{name} and all after it: more than {_MOST_FILES} files")
                break
            try:
                passages += split(read_text(path), name)
            except UnreadableFile as error:
                skipped.append(f"{name}: {error}")
        return cls(passages, skipped)

    def search(self, question: str, count: int = 6) -> list[Passage]:
        """The passages that share words with the question, the best first."""
        (query,) = _words([question])
        if self._index is None or not query:
            return []
        scores = self._index.get_scores(query)
        best = heapq.nsmallest(count, range(len(self.passages)), key=lambda place: -scores[place])
        return [self.passages[place] for place in best if scores[place] > 0]  # the others have none of the words


def walk(folder: Path) -> Iterator[Path]:
    """The files below a folder in order of their names, hidden ones left out; links to folders are not followed."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(files) if not name.startswith("."))


def read_text(path: Path) -> str:
    """The text of a file. Raises UnreadableFile, with the reason."""
    if path.suffix.lower() not in TEXT_FILES:
        raise UnreadableFile(f"no text file by its name; read are {', '.join(sorted(TEXT_FILES))}")
    try:
        if not path.is_file():  # a pipe would wait for ever
            raise UnreadableFile("no such file")
        if path.stat().st_size > _LARGEST_BYTES:
            raise UnreadableFile(f"larger than {_LARGEST_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile("not UTF-8 text") from error
    except OSError as error:
        raise UnreadableFile(error.strerror or str(error)) from error


def split(text: str, source: str, size: int = PASSAGE_CHARACTERS) -> list[Passage]:
    """Passages of at most `size` characters that are together the whole text, cut at paragraphs where that works."""
    pieces: list[str] = []
    for block in _BLOCK.findall(text):
        for piece in _cut(block, size):
            if pieces and len(pieces[-1]) + len(piece) <= size:
                pieces[-1] += piece
            else:
                pieces.append(piece)
    passages: list[Passage] = []
    line = 1
    for piece in pieces:
        leading = len(piece) - len(piece.lstrip("\n"))
        passages.append(Passage(source, line + leading, piece))
        line += piece.count("\n")
    return passages


def _cut(block: str, size: int) -> Iterator[str]:
    """A paragraph in pieces of at most `size`, cut at the last line end, else space, that is in reach."""
    while len(block) > size:
        end = max(block.rfind("\n", 0, size), 0) or max(block.rfind(" ", 0, size), 0) or size - 1
        yield block[: end + 1]
        block = block[end + 1 :]
    if block:
        yield block


def _words(texts: Sequence[str]) -> list[list[str]]:
    words = bm25s.tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
    assert isinstance(words, list)
    return words
