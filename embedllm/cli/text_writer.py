"""Where the text of a reply goes: rendered and folded on a terminal, as it is into a file or a pipe."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from embedllm.cli.markdown.word_wrap import WordWrap

# what would move the cursor, change the clipboard and so on, as its picture: "␛"; lines and tabs stay as they are
_PICTURES = {n: 0x2400 + n for n in range(32) if chr(n) not in "\n\t"} | dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)
_DIM = "2"  # SGR


class Writer(Protocol):
    """push() takes the pieces of a text; end() ends the last line, if one was begun, and can be called again."""

    def push(self, text: str) -> None: ...
    def end(self) -> None: ...


def writer_of(file: TextIO, *, is_markdown: bool = False, is_dim: bool = False) -> Writer:
    """is_markdown: a terminal renders it. is_dim: a terminal shows it so. Both fold it between words."""
    if not can_style(file):
        return _Plain(file)
    if is_markdown:
        return _Markdown(file)
    return _Folded(file, _DIM if is_dim else "")


def can_style(file: TextIO) -> bool:
    """Whether it is a terminal that understands escape sequences."""
    if not file.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    if sys.platform != "win32":
        return True
    from rich.console import Console

    return not Console(file=file).legacy_windows


def has_colours() -> bool:
    """https://no-color.org"""
    return not os.environ.get("NO_COLOR")


class _Plain:
    def __init__(self, file: TextIO) -> None:
        self._file, self._last = file, "\n"
        self._pictures = _PICTURES if file.isatty() else {}

    def push(self, text: str) -> None:
        self._file.write(text.translate(self._pictures))  # click.echo would take escapes out of a file's text
        self._file.flush()
        self._last = text[-1:] or self._last

    def end(self) -> None:
        if self._last != "\n":
            self.push("\n")


class _Markdown:
    def __init__(self, file: TextIO) -> None:
        from embedllm.cli.markdown.writer import MarkdownWriter

        self._file = file
        self._writer = MarkdownWriter(file.write, shutil.get_terminal_size, colours=has_colours())

    def push(self, text: str) -> None:
        self._writer.push(text.translate(_PICTURES))
        self._file.flush()

    def end(self) -> None:
        self._writer.end()
        self._file.flush()


class _Folded:
    def __init__(self, file: TextIO, style: str) -> None:
        from embedllm.cli.markdown.word_wrap import WordWrap

        self._file, self._style, self._is_begun = file, style, False
        self._wrap: WordWrap = WordWrap(file.write, lambda: shutil.get_terminal_size()[0])

    def push(self, text: str) -> None:
        first, *lines = text.translate(_PICTURES).split("\n")
        self._add(first)
        for line in lines:
            self._end_line()
            self._add(line)
        self._file.flush()

    def end(self) -> None:
        if self._is_begun:
            self._end_line()
            self._file.flush()

    def _add(self, text: str) -> None:
        if text and not self._is_begun:
            self._wrap.begin("", "")
            self._is_begun = True
        self._wrap.add(text, self._style)

    def _end_line(self) -> None:
        self._wrap.end()
        self._file.write("\n")
        self._is_begun = False
