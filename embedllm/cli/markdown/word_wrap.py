"""Lines folded between words as they are written, each word as soon as it is whole."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len

from embedllm.cli.markdown.inline import Atom, ansi

# spaces; a character of a script that has none between words; a part of a word
_PIECES = re.compile(r"[ \t]+|[\u2e80-\u30ff\u3400-\u9fff\uff00-\uffef]|[^ \t\u2e80-\u30ff\u3400-\u9fff\uff00-\uffef]+")
_TAB = "    "
_LEAST = 8  # columns that a line has behind its indent


class WordWrap:
    """Writes one line of text after the other.

    width: gives the columns of the terminal, which may change between lines.
    """

    def __init__(self, write: Callable[[str], object], width: Callable[[], int]) -> None:
        self._write, self._width = write, width
        self._indent, self._column = "", 0
        self._gap = ""  # spaces that are written only if a word follows on the same line
        self._word: list[Atom] = []

    def begin(self, first: str, indent: str) -> None:
        """A new line: what it begins with, and what the lines that it is folded into begin with."""
        self._write(first)
        self._column, self._gap, self._indent = cell_len(_plain(first)), "", indent

    def add(self, text: str, style: str) -> None:
        for piece in _PIECES.findall(text):
            if piece[0] in " \t":
                self._put()
                self._gap += piece.replace("\t", _TAB)
            elif _PIECES.fullmatch(piece) and piece[0] >= "\u2e80" and len(piece) == 1:
                self._put()
                self._word = [Atom(piece, style)]
                self._put()
            else:
                self._word.append(Atom(piece, style))

    def end(self) -> None:
        """The last word of the line; not the end of the line."""
        self._put()
        self._gap = ""

    def _put(self) -> None:
        if not self._word:
            return
        width, cells = self._width(), sum(cell_len(part.text) for part in self._word)
        indent = self._indent if cell_len(_plain(self._indent)) + _LEAST <= width else ""
        start = cell_len(_plain(indent))
        if self._column + len(self._gap) + cells > width and self._column > start:
            self._write("\n" + indent)
            self._column = start
        else:
            self._write(self._gap)
            self._column += len(self._gap)
        self._write(ansi(self._word))
        self._column += cells
        if self._column > width:  # a word longer than a line: the terminal folds it
            self._column %= width
        self._word, self._gap = [], ""


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)
