"""The assistant at a terminal, or for one question: options, commands, Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

import embedllm

from .assistant import Assistant
from .history import DamagedHistory, History, default_file
from .retrieval import Documents, UnreadableFile
from .screen import Screen
from .tools import Desktop

DEVICES = "npu,openvino-gpu,cpu"
HELP = """\
/docs FOLDER      answer from the text files in a folder; tools see its files
/summarise FILE   a summary of a document
/tools            what the model may call
/new              forget the conversation
/help             this list
/quit             leave; the conversation goes on next time
Ctrl-C stops a reply."""
_SHOWN_SKIPPED = 5
_INTERRUPTED = 128 + signal.SIGINT  # as a shell reports it
_ERRORS = (embedllm.EmbedError, UnreadableFile, OSError, ValueError)


class Session:
    """The assistant, the screen, and the commands that join them."""

    def __init__(self, screen: Screen, assistant: Assistant, desktop: Desktop) -> None:
        self._screen = screen
        self._assistant = assistant
        self._desktop = desktop
        self._commands: dict[str, Callable[[str], None]] = {
            "/docs": self.read,
            "/summarise": self._summarise,
            "/tools": lambda _: self._list_tools(),
            "/new": lambda _: self._begin_anew(),
            "/help": lambda _: screen.note(HELP, ""),
        }

    def talk(self) -> None:
        """Takes turns until the input ends or /quit."""
        with contextlib.suppress(ImportError):
            __import__("readline")  # editing of the line, where there is one
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
                if line == "/quit":
                    return
                self.take(line)
            except EOFError:
                return
            except KeyboardInterrupt:
                self._screen.note("")  # the line is dropped
            except _ERRORS as error:
                self._screen.note(f"error: {error}", "red")

    def take(self, line: str) -> None:
        """A command or a question."""
        name, _, rest = line.partition(" ")
        if not line.startswith("/"):
            if line:
                self.ask(line)
        elif name in self._commands:
            self._commands[name](rest.strip())
        else:
            raise ValueError(f"there is no command '{name}'; /help lists them.")

    def ask(self, question: str) -> bool:
        """Answers a question; whether the answer is whole, and was not stopped."""
        with stopped_by_ctrl_c() as cancel:
            self._screen.show(self._assistant.answer(question, cancel))
        return not cancel.cancelled

    def read(self, name: str) -> None:
        """Takes a folder as the documents to answer from, and as the files that tools see."""
        folder = Path(name).expanduser()
        if not name or not folder.is_dir():
            raise ValueError(f"'{name}' is no folder; expected /docs FOLDER.")
        documents = Documents.open(folder)
        self._assistant.documents = documents
        self._desktop.root = folder
        files = len({passage.source for passage in documents.passages})
        passages = _counted(len(documents.passages), "passage")
        self._screen.note(f"documents: {passages} of {_counted(files, 'file')} in '{folder}'")
        for line in documents.skipped[:_SHOWN_SKIPPED]:
            self._screen.note(f"skipped {line}")
        if len(documents.skipped) > _SHOWN_SKIPPED:
            self._screen.note(f"skipped {len(documents.skipped) - _SHOWN_SKIPPED} more")

    def _summarise(self, name: str) -> None:
        if not name:
            raise ValueError("expected /summarise FILE.")
        file = Path(name).expanduser()
        inside = self._desktop.root / file
        with stopped_by_ctrl_c() as cancel:
            self._screen.show(self._assistant.summarise(inside if inside.is_file() else file, cancel))

    def _list_tools(self) -> None:
        for name, tool in self._desktop.tools().items():
            kind = "always asks" if tool.has_side_effects else "only reads"
            self._screen.note(f"{name}: {tool.description} ({kind})", "")
        self._screen.note(f"They see the files below '{self._desktop.root.resolve()}'.", "")

    def _begin_anew(self) -> None:
        self._assistant.history.clear()
        self._screen.note("the conversation is forgotten")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", default="demo", show_default=True, metavar="FOLDER", help="Written by 'embedllm export'.")
@click.option("--device", default=DEVICES, show_default=True, envvar="EMBEDLLM_DEVICE", help="Tried in this order.")
@click.option("--docs", metavar="FOLDER", help="Answer from the text files in this folder.")
@click.option("--ask", metavar="TEXT", help="Answer one question on stdout and end; no conversation is kept.")
@click.option("--history", type=click.Path(path_type=Path, dir_okay=False), help="The file of the conversation.")
@click.option("--run-read-only", is_flag=True, help="Run tools that only read without asking.")
@click.option("-v", "--verbose", is_flag=True, help="The library's log on stderr: devices, compiling.")
def main(
    model: str,
    device: str,
    docs: str | None,
    ask: str | None,
    history: Path | None,
    run_read_only: bool,
    verbose: bool,
) -> None:
    """A laptop assistant that answers from your documents and calls tools, all on this machine."""
    if verbose:
        logging.getLogger("embedllm").addHandler(logging.StreamHandler())
        logging.getLogger("embedllm").setLevel(logging.INFO)
    wished = [name for part in device.split(",") if (name := part.strip())]
    is_whole = True
    try:
        with embedllm.load(model, device=wished) as llm:
            screen = Screen(device=llm.device.name, runs_read_only=run_read_only)
            _introduce(llm, wished, screen)
            past_turns = History() if ask is not None else _opened(history or default_file(), screen)
            desktop = Desktop(Path.cwd(), notify=lambda text: screen.note(text, "bold"))
            session = Session(screen, Assistant(llm, desktop.tools(), history=past_turns, allow=screen.allow), desktop)
            if docs is not None:
                session.read(docs)
            if ask is not None:
                is_whole = session.ask(ask)
            else:
                session.talk()
            if ended := desktop.close():
                screen.note(f"timers that end here: {ended}")
    except _ERRORS as error:
        raise click.ClickException(str(error)) from error
    if not is_whole:
        click.get_current_context().exit(_INTERRUPTED)


def _introduce(llm: embedllm.Model, wished: Sequence[str], screen: Screen) -> None:
    """The device, and why it is none that was wished for before it."""
    screen.note(f"{llm.name} on {llm.device.name} ({llm.device.description}), context {llm.context} tokens; /help")
    devices = {device.name: device for device in embedllm.devices()}
    for name in wished:
        if name == llm.device.name:
            break
        if name in devices:
            screen.note(f"not on {name}: {devices[name].reason}")
        elif name != "auto":
            screen.note(f"not on {name}: not found by this installation of embedllm")


def _opened(file: Path, screen: Screen) -> History:
    """The conversation in a file. A damaged one is put aside, and said."""
    try:
        history = History.open(file)
    except DamagedHistory as error:
        aside = file.replace(file.with_name(f"{file.name}.damaged"))
        screen.note(f"{error} It is now '{aside}'; a new conversation begins.", "yellow")
        return History(file)
    if history.turns:
        screen.note(f"turns remembered: {len(history.turns)}; /new forgets them")
    return history


@contextlib.contextmanager
def stopped_by_ctrl_c() -> Iterator[embedllm.Cancel]:
    """Within the block Ctrl-C cancels, after the step that runs; a second one raises KeyboardInterrupt."""
    cancel = embedllm.Cancel()

    def stop(number: int, frame: object) -> None:
        if cancel.cancelled:
            raise KeyboardInterrupt
        cancel.cancel()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
