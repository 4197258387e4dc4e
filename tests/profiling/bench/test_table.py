"""The tables of `embedllm bench`."""

from __future__ import annotations

import io

from rich.console import Console

from embedllm.cli.bench_table import _concurrent, fitting
from embedllm.cli.tables import new_table


def engine(name: str, *rates: float) -> dict[str, object]:
    """Several replies at once: the tokens a second of 1, 2, 3 ... replies."""
    cases = [
        {"kind": "concurrency", "depth": 0, "prompt": 16, "streams": streams, "of_first": 1.0,
         "tokens_s": {"median": rate, "least": rate, "most": rate}}
        for streams, rate in enumerate(rates, 1)
    ]  # fmt: skip
    return {"name": name, "cases": cases}


def test_several_replies_are_compared_with_one_of_the_same_engine() -> None:
    """A folder beside itself has the same name twice: how far apart two equal engines are measured."""
    rows = list(_concurrent([engine("demo", 10.0, 15.0), engine("demo", 20.0, 25.0)]))
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("demo", "1", "1.00"), ("demo", "1", "1.00"), ("demo", "2", "1.50"), ("demo", "2", "1.25"),
    ]  # fmt: skip


def test_where_one_reply_alone_was_not_measured_nothing_is_said_of_it() -> None:
    several = engine("demo", 10.0, 15.0)
    several["cases"] = several["cases"][1:]  # type: ignore[index]  # a list
    assert [row[4] for row in _concurrent([several])] == [""]


def test_a_narrow_terminal_gets_the_medians_and_no_folded_cell() -> None:
    columns = ["", "prompt", "first token, s", "prefill, tokens/s", "of first", "decode, tokens/s"]
    row = ("embedllm demo", "128", "0.035 (0.032-0.037)", "3,651 (3,446-3,998)", "1.00", "96.8 (95.0-99.1)")
    wide = Console(width=200, file=io.StringIO())
    assert fitting(wide, columns, [row]) == [row]
    narrow = Console(width=80, file=(shown := io.StringIO()))
    narrow.print(new_table(columns, fitting(narrow, columns, [row]), numbers_from=1))
    assert shown.getvalue().splitlines()[-1].split() == ["embedllm", "demo", "128", "0.035", "3,651", "1.00", "96.8"]
