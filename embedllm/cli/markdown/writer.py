"""A reply in Markdown on a terminal while it comes: each word when it is whole, code and tables line by line.

Only blocks that one line shows to be such are rendered: headings, lists, quotes, rules, code between fences, tables.
Lines stay lines. Raw lines of code and of tables are shown first and then written over, if all of them are still on the
screen; else they stay. So nothing that the model wrote is lost, whatever it is.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.cells import cell_len

from embedllm.cli.markdown.inline import BOLD, DIM, ansi, atoms, styled
from embedllm.cli.markdown.word_wrap import WordWrap

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_UNDECIDED = re.compile(  # beginnings of lines of which the next character says more
    r"[ \t]*(?:`{1,2}|~{1,2}|\+[ ]*|\d{1,9}(?:[.)][ ]*)?|(?:>[ ]?)+)?"
    r"|[ ]{0,3}\#{1,6}[ ]*|[ \t]*([-*_])(?:[ \t]*\1)*[ \t]*"
)
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_HEADING = re.compile(r"[ ]{0,3}(#{1,6})[ \t]+")
_ITEM = re.compile(r"([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+")
_QUOTE = re.compile(r"[ \t]*((?:>[ ]?)+)")
_TABLE = re.compile(r"[ \t]*\|")
_RULE = re.compile(r"[ \t]*([-*_])(?:[ \t]*\1){2,}[ \t]*")
_DELIMITERS = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
_RULE_COLUMNS = 40
_THEME = "ansi_dark"  # the terminal's own 16 colours
_LEXED = 400  # lines of code that are highlighted together


class MarkdownWriter:
    """Renders a reply. push() takes its pieces, however they are cut; end() comes last.

    write: writes to the terminal. size: gives its columns and lines. colours: without, bold and the like are left.
    """

    def __init__(
        self, write: Callable[[str], object], size: Callable[[], tuple[int, int]], *, colours: bool = True
    ) -> None:
        self._write, self._size, self._colours = write, size, colours
        self._wrap = WordWrap(write, lambda: size()[0])
        self._take = self._take_start  # what the next character goes to
        self._line = ""  # characters of the line that are not shown yet, or were shown raw
        self._last = ""  # the last character of the line that the wrap got
        self._style = ""  # of the line
        self._table: list[str] = []
        self._code: list[str] = []
        self._fence = self._language = ""

    def push(self, text: str) -> None:
        for character in text:
            self._take(character)

    def end(self) -> None:
        """Shows what waits, and ends the line."""
        if self._line or self._take not in (self._take_start, self._take_code):
            self._take("\n")
        self._end_table()

    # --- lines

    def _take_start(self, character: str) -> None:
        """The beginning of a line, until it says what the line is."""
        if character == "\n":
            self._end_undecided()
            return
        self._line += character
        if _UNDECIDED.fullmatch(self._line):
            return
        if _TABLE.match(self._line):
            self._write(self._line)
            self._take = self._take_row
            return
        self._end_table()
        if _FENCE.match(self._line):
            self._take = self._take_fence
            return
        self._begin_text()

    def _begin_text(self) -> None:
        line, self._line = self._line, ""
        first = indent = ""
        self._style, length = "", 0
        if heading := _HEADING.match(line):
            # a single one stays: it may be the comment of a command
            first, self._style, length = styled("# ", BOLD) * (len(heading[1]) == 1), BOLD, heading.end()
        elif item := _ITEM.match(line):
            mark = "•" if item[2] in "-*" else item[2]
            first = f"{item[1].expandtabs(4)}{mark} "
            indent, length = " " * cell_len(first), item.end()
        elif quote := _QUOTE.match(line):
            first = indent = styled("│ ", DIM) * quote[1].count(">")
            length = quote.end()
        else:
            length = len(line) - len(line.lstrip())
            first = indent = line[:length].expandtabs(4)
        self._wrap.begin(first, indent)
        self._last, self._take = "", self._take_text
        for character in line[length:]:
            self._take_text(character)

    def _end_undecided(self) -> None:
        """A line that has ended before it said what it is: a blank one, a rule, a mark alone."""
        line, self._line = self._line, ""
        self._end_table()
        if _RULE.fullmatch(line):
            self._write(styled("─" * min(_RULE_COLUMNS, self._size()[0]), DIM))
        elif quote := _QUOTE.fullmatch(line):
            self._write(styled("│ ", DIM) * quote[1].count(">"))
        else:
            self._write(line.rstrip())
        self._write("\n")

    def _take_text(self, character: str) -> None:
        is_final = character == "\n"
        if not is_final:
            self._line += character
        line_atoms, rest = atoms(self._line, self._last, is_final=is_final, style=self._style, colours=self._colours)
        length = len(self._line) - len(rest)
        self._last, self._line = self._line[length - 1 : length] or self._last, rest
        for one in line_atoms:
            self._wrap.add(one.text, one.style)
        if is_final:
            self._wrap.end()
            self._write("\n")
            self._take = self._take_start

    # --- code

    def _take_fence(self, character: str) -> None:
        if character != "\n":
            self._line += character
            return
        line, opened = self._line, _FENCE.match(self._line)
        assert opened is not None
        info = line[opened.end() :].strip()
        if "`" in info:  # code within a line
            self._begin_text()
            self._take_text("\n")
            return
        self._line, self._fence, self._language = "", opened[1], info.split(maxsplit=1)[0] if info else ""
        self._code, self._take = [], self._take_code
        self._write(styled(f"─── {info}".rstrip(), DIM) + "\n")

    def _take_code(self, character: str) -> None:
        mark = self._fence[0]
        if character != "\n":
            was_mark = not self._line.strip(f" \t{mark}")
            self._line += character
            if self._line.strip(f" \t{mark}"):  # it is not the end of the code, or not yet
                self._write(self._line if was_mark else character)
            return
        line, self._line = self._line, ""
        ends = line.strip()
        if len(ends) >= len(self._fence) and not ends.strip(mark):
            self._write(styled("───", DIM) + "\n")
            self._take = self._take_start
            return
        self._code.append(line)
        if not line.strip(f" \t{mark}"):
            self._write(line)
        elif self._colours and self._language and self._erase([line]):
            self._write(self._highlighted())
        self._write("\n")

    def _highlighted(self) -> str:
        """The last line of the code, with colours."""
        from rich.syntax import Syntax

        lines = self._code[-_LEXED:]
        text = Syntax("", self._language, theme=_THEME).highlight("\n".join(lines))
        return self._rendered(text.split("\n", allow_blank=True)[len(lines) - 1], soft_wrap=True)

    # --- tables

    def _take_row(self, character: str) -> None:
        self._write(character)
        if character != "\n":
            self._line += character
            return
        self._table.append(self._line)
        self._line, self._take = "", self._take_start

    def _end_table(self) -> None:
        rows, self._table = self._table, []
        if len(rows) < 2 or not _DELIMITERS.fullmatch(rows[1]):
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        cells = [[self._cell(cell) for cell in _cells(row)] for row in (rows[0], *rows[2:])]
        count = max(map(len, cells))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        alignments = [cell.strip() for cell in _cells(rows[1])]
        for index in range(count):
            mark = alignments[index] if index < len(alignments) else ""
            justify = "center" if mark[:1] + mark[-1:] == "::" else "right" if mark.endswith(":") else "left"
            table.add_column(cells[0][index] if index < len(cells[0]) else "", justify=justify, overflow="fold")
        for row in cells[1:]:
            table.add_row(*row, *[Text("")] * (count - len(row)))
        shown = self._rendered(table)
        if self._erase([*rows, ""]):
            lines = [line.rstrip() for line in shown.splitlines()]
            self._write("".join(f"{line}\n" for line in lines if line))

    def _cell(self, text: str) -> Text:
        from rich.text import Text

        return Text.from_ansi(ansi(atoms(text.strip(), "", is_final=True, colours=self._colours)[0]))

    # --- the screen

    def _erase(self, lines: list[str]) -> bool:
        """Takes raw lines from the screen, the cursor being in the last one; not where part of them has left it."""
        width, height = self._size()
        if any("\t" in line or len(line) != cell_len(line) for line in lines if cell_len(line) > width // 2):
            return False  # where the terminal folds them is not known
        rows = sum(max(1, math.ceil(cell_len(line) / width)) for line in lines)
        if rows > height:
            return False
        self._write((f"\x1b[{rows - 1}A" if rows > 1 else "") + "\r\x1b[J")
        return True

    def _rendered(self, renderable: object, *, soft_wrap: bool = False) -> str:
        with (console := self._console()).capture() as shown:
            console.print(renderable, soft_wrap=soft_wrap, end="")
        return shown.get()

    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=io.StringIO(), width=self._size()[0], force_terminal=True, color_system="standard",
                       no_color=not self._colours, highlight=False, legacy_windows=False)  # fmt: skip


def _cells(row: str) -> list[str]:
    """The cells of a row of a table; a bar behind a backslash is text."""
    return re.split(r"(?<!\\)\|", re.sub(r"(?<!\\)\|[ \t]*$", "", row.strip())[1:])
