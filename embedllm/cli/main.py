"""The command line: its commands, and how an error becomes a line on stderr and an exit code.

The reply, or what was asked for, goes to stdout; all else to stderr. What takes long to import is imported inside the
commands, so that `embedllm --help` starts fast.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from pathlib import Path

import click

from embedllm.cli.commands.bench import bench
from embedllm.cli.commands.chat import chat
from embedllm.cli.commands.devices import devices
from embedllm.cli.commands.eagle import eagle
from embedllm.cli.commands.embed import embed, rerank
from embedllm.cli.commands.eval import evaluate
from embedllm.cli.commands.export import export
from embedllm.cli.commands.families import families
from embedllm.cli.commands.fit import fit
from embedllm.cli.commands.graph import graph
from embedllm.cli.commands.inspect import inspect
from embedllm.cli.commands.mcp import mcp
from embedllm.cli.commands.models import models, pull, rm
from embedllm.cli.commands.mtp import mtp
from embedllm.cli.commands.run import run
from embedllm.cli.commands.serve import serve
from embedllm.cli.commands.shard import shard
from embedllm.cli.commands.tune import tune
from embedllm.cli.commands.worker import worker
from embedllm.cli.options import common_options, say_error, wants_traceback
from embedllm.errors import EmbedError
from embedllm.files.nearest import nearest
from embedllm.files.version import __version__

_ALIASES = {"list": "models", "ls": "models"}  # as other programs call them
_NEAREST = {  # commands of other programs
    "complete": "run",
    "convert": "export",
    "create": "export",
    "delete": "rm",
    "download": "pull",
    "generate": "run",
    "help": "--help",
    "info": "inspect",
    "quantize": "export",
    "remove": "rm",
    "show": "inspect",
    "version": "--version",
}
_CLOSED_PIPE = 141  # as a shell reports a program whose reader went away


class Failure(click.ClickException):
    """Ends a command with one line."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        say_error(self.message)


class Stopped(Failure):
    """Ctrl-C."""

    exit_code = 128 + signal.SIGINT  # 130, as a shell reports it


class Commands(click.Group):
    """A group that prints the library's errors as single lines."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError for an unknown command, with the nearest one."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            names = [*self.commands, *_ALIASES]
            near = f" The nearest is '{_NEAREST[name]}'." if name in _NEAREST else nearest(name, names)
            ctx.fail(f"No such command '{name}'.{near}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _discard_stdout()
            ctx.exit(_CLOSED_PIPE)
        except KeyboardInterrupt as error:
            raise Stopped("interrupted.") from error
        except (EmbedError, ValueError, OSError) as error:
            if wants_traceback(ctx):
                traceback.print_exc()
            raise Failure(_line(error)) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="embedllm", message="%(prog)s %(version)s")
@common_options
def cli() -> None:
    """Run, chat with and export language models: one package, one weights file, every device.

    \b
    embedllm run "list files by size"            generate a reply with the demo model
    embedllm export Qwen/Qwen3-0.6B my-model     export from the Hugging Face hub, 4-bit weights
    embedllm chat my-model                       chat with it

    Replies go to stdout, everything else to stderr. Exit codes: 0 success, 1 error, 2 usage error, 130 interrupted.
    """


_COMMANDS = (run, chat, embed, rerank, export, graph, mtp, eagle, shard, inspect, fit, tune, bench, evaluate, devices,
             families, mcp, models, pull, rm, serve, worker)  # fmt: skip
for command in _COMMANDS:
    cli.add_command(command)


def main() -> None:
    """What the program `embedllm` does once this module is imported."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - lives as long as we do
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        # UTF-8 like what we write, and not the old code page of Windows; a byte that is none is one turn's error
        encoding = "utf-8" if sys.platform == "win32" else None
        sys.stdin.reconfigure(encoding=encoding, errors="surrogateescape")
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue  # replaced by whoever called
        if sys.platform == "win32" and not stream.isatty():
            stream.reconfigure(encoding="utf-8")  # a pipe would get the old code page, which lacks most characters
        stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character shows its number
    cli(prog_name="embedllm")


def _line(error: Exception) -> str:
    """What an error says; the system's own, by the file that it is about and not by its number."""
    if isinstance(error, OSError) and error.strerror and type(error).__str__ is OSError.__str__:
        return f"{error.strerror}." if error.filename is None else f"cannot use '{error.filename}': {error.strerror}."
    return str(error)


def _discard_stdout() -> None:
    """Nobody reads any more: what is left in the buffer must not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
