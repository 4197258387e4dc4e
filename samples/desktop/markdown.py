"""Markdown as formatted text, line by line while it comes: what a line is does not change once the next one begins.

Qt's own importer takes the marks out of commands (`find -name "*.py"`), and images and HTML of a model at their word.
Here a mark is left out only where it cannot be part of a command, and everything else is text.
"""

from __future__ import annotations

import re

from PySide6.QtGui import QBrush, QColor, QFont, QFontDatabase, QPalette, QTextBlockFormat, QTextCharFormat, QTextCursor

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})([^`]*)$")
_HEADING = re.compile(r" {0,3}(#{2,6})[ \t]+(?=\S)")  # a single # may be a comment
_ITEM = re.compile(r"([ \t]*)([-*]|\d{1,9}[.)])[ \t]+(?=\S)")
_QUOTE = re.compile(r"[ \t]*((?:>[ ]?)+)")
_TABLE = re.compile(r"[ \t]*\|")
_INLINE = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|(?<![\w*])\*\*(?=[\w\"'`(])(?P<bold>.+?)(?<=[^\s*])\*\*(?!\*)"
    r"|\[(?P<text>[^\[\]]+)\]\((?P<link>[^()\s]+)\)"
)
_STEP = 18  # pixels of an indent
_CODE_GAP = 6  # pixels above a block of code
_LARGER = 1.15  # the size of a heading


class MarkdownCursor:
    """Writes at a cursor, from a block of its own on. push() takes the pieces of a text, however they are cut.

    code_links: for each block of code, where a click on its "Copy" leads.
    """

    def __init__(self, cursor: QTextCursor, palette: QPalette, code_link: str) -> None:
        self._cursor, self._palette, self._code_link = cursor, palette, code_link
        self._line = ""
        self._fence = ""  # of the code that the line is in
        self.codes: list[list[str]] = []  # the lines of each block of code

    def push(self, text: str) -> None:
        first, *lines = text.split("\n")
        self._show(self._line + first)
        for line in lines:
            self._end_line()
            self._show(line)

    def _show(self, line: str) -> None:
        """The line that is coming, in place of what there is of it."""
        self._line = line
        if self._fence:
            is_end = self._is_end(line)
            self._write(
                [] if is_end else [(line, self._code_format())], QTextBlockFormat() if is_end else self._code_block()
            )
            return
        for pattern, show in ((_HEADING, self._show_heading), (_ITEM, self._show_item), (_QUOTE, self._show_quote)):
            if match := pattern.match(line):
                show(match, line[match.end() :])
                return
        is_row = _TABLE.match(line) is not None
        self._write([(line, self._fixed())] if is_row else self._inline(line), QTextBlockFormat())

    def _end_line(self) -> None:
        """The line is whole; the cursor stands in the block of the next one."""
        line, self._line = self._line, ""
        if self._fence:
            if self._is_end(line):
                self._fence = ""  # the next line takes the place of the mark
                return
            self.codes[-1].append(line)
        elif opened := _FENCE.match(line):
            self._fence = opened[1]
            self._begin_code(opened[2].strip())
        self._cursor.insertBlock(QTextBlockFormat(), QTextCharFormat())

    def _is_end(self, line: str) -> bool:
        mark = line.strip()
        return len(mark) >= len(self._fence) and not mark.strip(self._fence[0])

    def _begin_code(self, language: str) -> None:
        self.codes.append([])
        copy = self._dim()
        copy.setAnchor(True)
        copy.setAnchorHref(f"{self._code_link}/{len(self.codes) - 1}")
        copy.setFontUnderline(True)
        block = self._code_block()
        block.setTopMargin(_CODE_GAP)
        self._write([(f"{language}   " if language else "", self._dim()), ("Copy", copy)], block)

    def _show_heading(self, match: re.Match[str], rest: str) -> None:
        larger = QTextCharFormat()
        size = self._cursor.document().defaultFont().pointSizeF()
        if size > 0:
            larger.setFontPointSize(_LARGER * size)
        larger.setFontWeight(QFont.Weight.Bold)
        self._write(self._inline(rest, larger), QTextBlockFormat())

    def _show_item(self, match: re.Match[str], rest: str) -> None:
        mark = "•" if match[2] in "-*" else match[2]
        block = QTextBlockFormat()
        block.setLeftMargin(_STEP * (1 + len(match[1].expandtabs(4)) // 2))
        block.setTextIndent(-_STEP)
        self._write([(f"{mark}  ", self._dim()), *self._inline(rest)], block)

    def _show_quote(self, match: re.Match[str], rest: str) -> None:
        block = QTextBlockFormat()
        block.setLeftMargin(_STEP * match[1].count(">"))
        self._write(self._inline(rest, self._dim()), block)

    def _inline(self, line: str, base: QTextCharFormat | None = None) -> list[tuple[str, QTextCharFormat]]:
        base = base or QTextCharFormat()
        parts: list[tuple[str, QTextCharFormat]] = []
        at = 0
        for match in _INLINE.finditer(line):
            parts.append((line[at : match.start()], base))
            at = match.end()
            if match["code"]:
                parts.append((match["code"], self._code_format()))
            elif match["bold"]:
                bold = QTextCharFormat(base)
                bold.setFontWeight(QFont.Weight.Bold)
                parts += self._inline(match["bold"], bold)
            else:
                parts += [(match["text"], base), (f" ({match['link']})", self._dim())]
        return [*parts, (line[at:], base)]

    def _write(self, parts: list[tuple[str, QTextCharFormat]], block: QTextBlockFormat) -> None:
        """Fills the block of the cursor."""
        cursor = self._cursor
        cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock)
        cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.setBlockFormat(block)
        for text, form in parts:
            cursor.insertText(text, form)  # insertText takes "<b>" for what it is

    def _code_block(self) -> QTextBlockFormat:
        block = QTextBlockFormat()
        block.setBackground(self._ground())
        block.setNonBreakableLines(False)
        return block

    def _code_format(self) -> QTextCharFormat:
        form = self._fixed()
        form.setBackground(self._ground())
        return form

    @staticmethod
    def _fixed() -> QTextCharFormat:
        form = QTextCharFormat()
        form.setFontFamilies(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).families())
        return form

    def _dim(self) -> QTextCharFormat:
        form = QTextCharFormat()
        form.setForeground(mixed(self._palette, QPalette.ColorRole.Text, QPalette.ColorRole.Base, 0.6))
        return form

    def _ground(self) -> QBrush:
        return QBrush(mixed(self._palette, QPalette.ColorRole.Text, QPalette.ColorRole.Base, 0.07))


def mixed(palette: QPalette, role: QPalette.ColorRole, other: QPalette.ColorRole, share: float) -> QColor:
    """A colour between two of the system's palette: readable in light and dark. share: of the first one."""
    one, two = palette.color(role), palette.color(other)
    parts = (round(share * a + (1 - share) * b) for a, b in zip(one.getRgb()[:3], two.getRgb()[:3], strict=True))  # type: ignore[index] # a tuple of four
    return QColor(*parts)
