"""Lines that are typed or piped in: editing, completion, pasted text, and a history that only its owner reads.

Editing is readline's, where Python has it. A pasted text of several lines is one line to it ("bracketed paste": the
terminal marks where it begins and ends), but to libedit, which stands in for readline in some Pythons, and to the
console of Windows it is several.
"""

from __future__ import annotations

import atexit
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import click

from embedllm.cli.text_writer import can_style, has_colours

_HISTORY_LINES = 1000


def line_reader(commands: Sequence[str], *, is_typed: bool) -> Callable[[str], str]:
    """A function that takes a prompt and gives a line of stdin without its end; it raises EOFError.

    commands: what Tab completes.
    """
    if not is_typed:
        return lambda _: _read_line()
    if not sys.stdout.isatty():
        return _prompt_on_stderr  # input() would write its prompt among the replies
    with suppress(ImportError):  # not on Windows, whose console edits lines itself
        readline = importlib.import_module("readline")
        _prepare(readline, commands)
        if not _is_libedit(readline) and can_style(sys.stdout):
            return _bold_prompt
    return input


def _prepare(readline: ModuleType, commands: Sequence[str]) -> None:
    readline.set_completer_delims("")
    readline.set_completer(lambda typed, at: [*(name for name in commands if name.startswith(typed)), None][at])
    if _is_libedit(readline):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        readline.parse_and_bind("tab: complete")
        if can_style(sys.stdout):
            readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off
    _keep_history(readline)


def _is_libedit(readline: ModuleType) -> bool:
    return "libedit" in (readline.__doc__ or "")


def _keep_history(readline: ModuleType) -> None:
    """What was typed in earlier chats is there; what is typed is kept for the next one."""
    from platformdirs import user_state_path

    path = user_state_path("embedllm", appauthor=False) / "chat_history"
    with suppress(OSError):  # a home that cannot be written
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            readline.add_history(_unescaped(line))
        atexit.register(_write_history, readline, path)


def _write_history(readline: ModuleType, path: Path) -> None:
    count = readline.get_current_history_length()
    lines = [
        _escaped(readline.get_history_item(at) or "") for at in range(max(1, count - _HISTORY_LINES + 1), count + 1)
    ]
    with suppress(OSError):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="replace")


def _escaped(line: str) -> str:
    """On one line of the file."""
    return line.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\n")


def _unescaped(line: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], line)


def _bold_prompt(prompt: str) -> str:
    style = "1;36" if has_colours() else "1"
    return input(f"\x01\x1b[{style}m\x02{prompt}\x01\x1b[0m\x02")  # readline counts no columns between 1 and 2


def _prompt_on_stderr(prompt: str) -> str:
    click.echo(prompt, err=True, nl=False)
    return _read_line()


def _read_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")
