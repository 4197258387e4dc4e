"""Replies in Markdown on a screen, whatever pieces they come in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.cli.markdown.writer import MarkdownWriter
from tests.support.screen import Screen

REPLY = """# Size

A **bold word** and `ls *.py`, *this*, [docs](https://x.y/z), 2 * 3 * 4, snake_case_name.

## Steps
- an item that is too long for a line of forty columns
  - nested **not closed
1. one
> a quote that is too long for a line of forty columns, too

```python
def f(x):
    return "a string that is longer than the screen is wide"

```

| name | value |
|------|------:|
| `a` | 1 |
| **b** | 22 |
---
"""
RENDERED = """\
# Size

A bold word and `ls *.py`, *this*, docs
(https://x.y/z), 2 * 3 * 4,
snake_case_name.

Steps
• an item that is too long for a line of
  forty columns
  • nested **not closed
1. one
│ a quote that is too long for a line of
│ forty columns, too

─── python
def f(x):
    return "a string that is longer than
 the screen is wide"

───

 name   value
 ────────────
 `a`        1
 b         22
────────────────────────────────────────
"""


def shown(pieces: Sequence[str], *, width: int = 40, height: int = 24, colours: bool = True) -> Screen:
    screen = Screen(width, height)
    writer = MarkdownWriter(screen.write, lambda: screen.size, colours=colours)
    for piece in pieces:
        writer.push(piece)
    writer.end()
    return screen


def escapes(text: str, *, colours: bool = True) -> str:
    written: list[str] = []
    writer = MarkdownWriter(written.append, lambda: (80, 24), colours=colours)
    writer.push(text)
    writer.end()
    return "".join(written)


def test_a_reply_is_rendered_and_folded_between_words() -> None:
    assert shown([REPLY]).text == RENDERED


@given(cuts=st.lists(st.integers(1, len(REPLY) - 1), max_size=30), colours=st.booleans())
def test_the_pieces_that_it_comes_in_make_no_difference(cuts: list[int], colours: bool) -> None:
    places = [0, *sorted(cuts), len(REPLY)]
    pieces = [REPLY[start:stop] for start, stop in pairwise(places)]
    assert shown(pieces, colours=colours).text == RENDERED


LINES = st.sampled_from(
    ["| a1 | **b** |\n", "|---|:-:|\n", "|a|\n", "```py\n", "a = 1 # b\n", "```\n", "- b1 a1 ", "\n", "> ab "]
)


@given(
    text=st.lists(LINES, max_size=20).map("".join)
    | st.text(st.sampled_from("ab1 *`_#-+>|~.)([]\\\n\t/:$\"'漢"), max_size=200),
    width=st.integers(12, 50),
    height=st.integers(3, 12),
)
def test_no_letter_is_lost_whatever_the_reply_is(text: str, width: int, height: int) -> None:
    """Letters and digits in their order; a screen where code and tables cannot be written over, too."""
    found = re.sub(r"[^ab1漢]", "", shown([text], width=width, height=height).text)
    assert found == re.sub(r"[^ab1漢]", "", text)


@pytest.mark.parametrize(
    "command",
    [
        'find . -name "*.py" -o -name "*.md"',
        "rm -rf *backup* **/*.txt",
        "echo `date` $(ls -d */) \\* a\\`b",
        "# the largest files",
        "du -sh * | sort -h",
        "__init__ and _x_ and a*b*c and ~~x~~",
        "[ -f x ] && [[ $a == *b* ]]",
        "2024 was 3.14, 5) or so",
        "|",
        "+ added",
        "```one line```",
    ],
)
def test_commands_outside_of_code_blocks_stay_as_they_are(command: str) -> None:
    assert shown([command], width=80).text == command + "\n"


def test_a_table_that_has_left_the_screen_stays_as_the_model_wrote_it() -> None:
    table = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 10
    assert shown([table], height=6).text == table
    assert "|" not in shown([table], height=24).text


def test_a_table_ends_with_the_reply() -> None:
    assert shown(["|a|b|\n|-|-|\n|1|2|"]).text == " a   b\n ─────\n 1   2\n"


def test_bars_that_are_no_table_stay() -> None:
    assert shown(["| a | b\n| c\n\nx"]).text == "| a | b\n| c\n\nx\n"


def test_words_come_as_soon_as_they_are_whole() -> None:
    screen = Screen(40, 24)
    writer = MarkdownWriter(screen.write, lambda: screen.size)
    seen = []
    for piece in ("Hel", "lo", " wor", "ld **b", "old** ", "x"):
        writer.push(piece)
        seen.append(screen.text)
    assert seen == ["", "", "Hello", "Hello world", "Hello world bold", "Hello world bold"]


def test_lines_of_code_come_as_they_are_written() -> None:
    screen = Screen(40, 24)
    writer = MarkdownWriter(screen.write, lambda: screen.size)
    writer.push("```sh\ntar xz")
    assert screen.text == "─── sh\ntar xz"


def test_code_is_highlighted_and_the_end_of_its_block_is_that_of_its_fence() -> None:
    assert "\x1b[94mdef" in escapes("```python\ndef f(): pass\n```\n")
    assert shown(["````\n```\nx\n````\ny"]).text == "───\n```\nx\n───\ny\n"


def test_without_colours_bold_is_left() -> None:
    found = escapes(REPLY, colours=False)
    assert set(re.findall(r"\x1b\[([\d;]*)m", found)) <= {"0", "1", "2", "3", "4"}
    assert "\x1b[1mbold\x1b[0m" in found


def test_a_reply_that_is_cut_short_ends_its_line() -> None:
    for text in ("a **b", "```sh\nls", "- ", "#", "| a", "> ", "`x", "```py"):
        screen = shown([text])
        assert screen.text.endswith("\n")
        assert not screen.text.endswith("\n\n")
    assert shown([""]).text == ""
