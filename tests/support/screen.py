"""A terminal's screen, as far as the command line writes to one: text, wrapping, a few escape sequences."""

from __future__ import annotations

import re

from rich.cells import cell_len

_TOKEN = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\r|\n|[^\x1b\r\n]")


class Screen:
    """What is seen, with what has left it above: rows without the spaces at their ends."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    @property
    def rows(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    def write(self, text: str) -> None:
        for found in _TOKEN.finditer(text):
            if found[2]:
                self._control(found[1], found[2])
            elif found[0] == "\r":
                self._column = 0
            elif found[0] == "\n":
                self._down()
            else:
                self._put(found[0])

    def _put(self, character: str) -> None:
        cells = cell_len(character)
        if self._column + cells > self.width:
            self._down()
        row = self._rows[self._row]
        row += [" "] * (self._column + cells - len(row))
        row[self._column : self._column + cells] = [character, *[""] * (cells - 1)]
        self._column += cells

    def _down(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append([])

    def _control(self, number: str, what: str) -> None:
        if what == "m":
            return
        if what == "A":
            top = max(0, len(self._rows) - self.height)  # what has left the screen is out of reach
            self._row = max(top, self._row - int(number or 1))
        elif what == "J":
            del self._rows[self._row][self._column :]
            del self._rows[self._row + 1 :]
        else:
            raise AssertionError(f"the escape sequence {number!r} {what!r} is not known")
