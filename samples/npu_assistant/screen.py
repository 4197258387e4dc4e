"""What the user sees and is asked: replies on stdout, all else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
from rich.console import Console
from rich.text import Text as Styled

from embedllm import ToolCall

from .power import PowerMeter
from .reply import Done, Event, Notice, Text, ToolRun
from .tools import Tool

# what would move the cursor or change the window's title, as its picture: "␛"
_PICTURES = {n: 0x2400 + n for n in range(32) if chr(n) not in "\n\t"} | dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)


class Screen:
    """The terminal, or whatever stdout and stderr are.

    device: shown below each reply. runs_read_only: tools that only read run without a question.
    """

    def __init__(self, *, device: str = "", runs_read_only: bool = False) -> None:
        self.device = device
        self._runs_read_only = runs_read_only
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._can_ask = sys.stdin.isatty() and sys.stderr.isatty()
        self._pictures = _PICTURES if sys.stdout.isatty() else {}
        self._line_is_open = False
        self._meter = PowerMeter()

    def note(self, text: str, style: str = "dim") -> None:
        """A line that is no part of a reply."""
        self._end_line()
        self._console.print(Styled(text.translate(_PICTURES), style=style))

    def allow(self, call: ToolCall, tool: Tool) -> bool:
        """Asks the user. Without a terminal nobody can say yes."""
        if self._runs_read_only and not tool.has_side_effects:
            return True
        if not self._can_ask:
            self.note(f"declined, as nobody can be asked: {call}")
            return False
        self._end_line()
        self._meter.stop()  # the wait is no part of the reply
        try:
            return click.confirm(f"run {call}?".translate(_PICTURES), default=False, err=True)
        except click.Abort:
            return False
        finally:
            self._meter.start()

    def show(self, events: Iterator[Event]) -> None:
        """A whole turn, with what was read and what it cost below it."""
        self._meter.start()
        try:
            for event in events:
                self._show(event)
        finally:
            self._end_line()

    def _show(self, event: Event) -> None:
        match event:
            case Text(text):
                self._write(text)
            case Notice(text):
                self.note(f"({text})")
            case ToolRun(call, ran, result):
                self.note(f"{call} -> {result}", "cyan" if ran else "yellow")
            case Done(statistics, passages):
                self._meter.stop()
                if passages:
                    self.note(f"read: {', '.join(map(str, passages))}")
                speed = f"{statistics.tokens} tokens, {statistics.decode_tokens_s:.0f} tokens/s"
                self.note(", ".join(filter(None, [self.device, speed, self._meter.take()])))

    def _write(self, text: str) -> None:
        """A piece of the reply. A file or a pipe gets it as it is."""
        sys.stdout.write(text.translate(self._pictures))
        sys.stdout.flush()
        self._line_is_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._line_is_open:
            self._write("\n")
