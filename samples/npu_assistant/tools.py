"""What the assistant can do on this machine. Each call is checked, and allowed by the user, before it runs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from embedllm import ToolCall
from embedllm.text.function_schema import Schema, tool_schema
from embedllm.tools.arguments import check_arguments

from .calculator import calculate
from .power import battery_state
from .retrieval import UnreadableFile, read_text, walk

_MOST_HITS = 20
_MOST_FILES = 20_000
_LONGEST_RESULT = 2000  # characters that go back to the model
_LONGEST_TIMER_MINUTES = 24 * 60
# what opens in a viewer or editor; never what the system would run (.exe, .sh, .desktop, ...)
_OPENED = frozenset({".csv", ".doc", ".docx", ".gif", ".jpeg", ".jpg", ".log", ".md", ".mp3", ".mp4", ".odp", ".ods",
                     ".odt", ".ogg", ".pdf", ".png", ".pptx", ".rst", ".txt", ".wav", ".xlsx"})  # fmt: skip


class ToolFailed(Exception):
    """A tool could not do what it was asked for; the message is for the user and for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call, by its name and with the arguments of its signature."""

    function: Callable[..., str]
    has_side_effects: bool
    schema: Schema  # as the chat template gets it

    @property
    def description(self) -> str:
        return cast("str", self._function["description"])

    @property
    def _function(self) -> Schema:
        return cast("Schema", self.schema["function"])  # as tool_schema builds it

    def check(self, call: ToolCall) -> None:
        """Raises ToolFailed when the arguments are not those of the schema."""
        try:
            check_arguments(call.arguments, cast("Schema", self._function["parameters"]))
        except ValueError as error:
            raise ToolFailed(str(error)) from error

    def run(self, call: ToolCall) -> str:
        """What the tool says; the call is checked. Raises ToolFailed."""
        try:
            result = self.function(**call.arguments)
        except (ValueError, OSError) as error:
            raise ToolFailed(str(error)) from error
        left_out = len(result) - _LONGEST_RESULT
        return result if left_out <= 0 else f"{result[:_LONGEST_RESULT]}\n({left_out} more characters)"


class Desktop:
    """The tools. They see the files below `root` only.

    notify: told when a timer is over, in a thread of its own. start: opens a file in its application.
    """

    def __init__(
        self, root: Path, *, notify: Callable[[str], None], start: Callable[[Path], None] | None = None
    ) -> None:
        self.root = root
        self.timers: list[threading.Timer] = []
        self._notify = notify
        self._start = start or open_in_application

    def tools(self) -> dict[str, Tool]:
        """By name. The docstrings are what the model reads."""
        reading, acting = (self.calculator, self.search_files, self.get_system_info), (self.open_file, self.start_timer)
        return {
            function.__name__: Tool(function, function in acting, _schema(function)) for function in reading + acting
        }

    def calculator(self, expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: for example 2 + 2
        """
        value = calculate(expression)
        return f"{value:.12g}" if isinstance(value, float) else str(value)

    def search_files(self, query: str) -> str:
        """Search the user's files by name and content.

        Args:
            query: Search words
        """
        hits: list[str] = []
        for hit in self._hits(query.strip().lower()):
            if len(hits) == _MOST_HITS:
                return "\n".join([*hits, f"(the first {_MOST_HITS} files; there are more)"])
            hits.append(hit)
        return "\n".join(hits) or f"No file has '{query}' in its name or text."

    def get_system_info(self) -> str:
        """Get the system information: processor, memory, disk, battery, date and time."""
        facts = {
            "date and time": f"{datetime.now().astimezone():%A %Y-%m-%d %H:%M}",
            "system": f"{platform.system()} {platform.release()}",
            "processor": f"{platform.processor() or platform.machine()}, {os.cpu_count()} threads",
            "memory": _memory(),
            "disk": f"{shutil.disk_usage(self.root).free / 1e9:.0f} GB free",
            "battery": battery_state(),
        }
        return "\n".join(f"{name}: {fact}" for name, fact in facts.items() if fact)

    def open_file(self, path: str) -> str:
        """Open a file in its application.

        Args:
            path: Path of the file
        """
        file = self._inside(path)
        self._start(file)
        return f"Opened {file.name}."

    def start_timer(self, minutes: float) -> str:
        """Start a timer.

        Args:
            minutes: Length in minutes
        """
        if not 0 < minutes <= _LONGEST_TIMER_MINUTES:
            raise ValueError(f"{minutes} minutes; a timer runs for more than 0 and at most {_LONGEST_TIMER_MINUTES}.")
        timer = threading.Timer(minutes * 60, self._notify, [f"The timer of {minutes:g} minutes is over."])
        timer.daemon = True
        timer.start()
        self.timers = [*(other for other in self.timers if other.is_alive()), timer]
        return f"The timer of {minutes:g} minutes runs."

    def close(self) -> int:
        """Ends the timers; how many were still running."""
        running = [timer for timer in self.timers if timer.is_alive()]
        for timer in running:
            timer.cancel()
        self.timers = []
        return len(running)

    def _inside(self, path: str) -> Path:
        """The file that is meant: below root, and of a kind that is looked at and not run. Raises ValueError."""
        root = self.root.resolve()
        file = (root / Path(path)).resolve()
        if not file.is_relative_to(root):
            raise ValueError(f"'{path}' is not below '{root}'; nothing else is opened.")
        if not file.is_file():
            raise ValueError(f"there is no file '{path}' in '{root}'.")
        if file.suffix.lower() not in _OPENED:
            raise ValueError(f"'{path}' is of a kind that is not opened; these are: {', '.join(sorted(_OPENED))}.")
        return file

    def _hits(self, query: str) -> Iterator[str]:
        """A line for each file that has the query in its name or, as a text file, in a line."""
        if not query:
            raise ValueError("the query is empty.")
        for count, file in enumerate(walk(self.root)):
            if count == _MOST_FILES:
                yield f"(stopped after {_MOST_FILES} files)"
                return
            name = file.relative_to(self.root).as_posix()
            if query in name.lower():
                yield name
            elif (hit := _first_line(file, query)) is not None:
                yield f"{name}:{hit[0]}: {hit[1]}"


def outcome(call: ToolCall, tools: Mapping[str, Tool], allow: Callable[[ToolCall, Tool], bool]) -> tuple[bool, str]:
    """Whether a call ran, and its result or what was wrong with it; nothing that a model writes raises.

    allow: asked before the tool runs, once it is clear that it can.
    """
    tool = tools.get(call.name)
    try:
        if call.problem:
            raise ToolFailed(call.problem)
        if tool is None:
            raise ToolFailed(f"there is no tool '{call.name}'; there are {', '.join(tools)}.")
        tool.check(call)
        if not allow(call, tool):
            raise ToolFailed("the user declined the call.")
        return True, tool.run(call)
    except ToolFailed as error:
        return False, f"error: {error}"


def open_in_application(file: Path) -> None:
    """Opens a file as a double click would. Raises OSError when there is nothing to open it with."""
    if sys.platform == "win32":
        os.startfile(file)
        return
    program = "open" if sys.platform == "darwin" else "xdg-open"
    if shutil.which(program) is None:
        raise OSError(f"'{program}' is not installed, so that nothing can be opened.")
    quiet = subprocess.DEVNULL
    subprocess.Popen([program, str(file)], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def _schema(function: Callable[..., str]) -> Schema:
    """The schema without what the function returns: all give text, and the demo calls tools less often with it."""
    schema = tool_schema(function)
    cast("Schema", schema["function"]).pop("return", None)
    return schema


def _first_line(file: Path, query: str) -> tuple[int, str] | None:
    """The first line of a text file that has the query: its number and text."""
    try:
        lines = read_text(file).splitlines()
    except UnreadableFile:
        return None
    return next(((n, line.strip()[:200]) for n, line in enumerate(lines, 1) if query in line.lower()), None)


def _memory() -> str:
    """Of the machine; empty where the standard library does not say."""
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return ""
