"""Tables, and the console that the commands write them to."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


WIDE = 200  # columns when nobody's terminal says how many: a table must not be folded for a pipe


def new_console() -> Console:
    from rich.console import Console

    is_typed = sys.stdout.isatty()
    piped = cast("IO[str]", Unpadded())  # a console writes and flushes, no more
    return Console(file=sys.stdout if is_typed else piped, highlight=False, width=None if is_typed else WIDE)


class Unpadded(io.TextIOBase):
    """Lines on their way to stdout, without the spaces that fill a table's last column."""

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        sys.stdout.flush()


def new_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int | None = None, header: bool = True
) -> Table:
    """numbers_from: the first column that is set to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header, header_style="dim")
    for index, column in enumerate(columns):
        is_number = numbers_from is not None and index >= numbers_from
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as text: a path may look like markup
    return table
