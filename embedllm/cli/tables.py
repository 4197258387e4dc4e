"""Tables, and the console that the commands write them to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


WIDE = 200  # columns when nobody's terminal says how many: a table must not be folded for a pipe


def new_console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDE)


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
