"""`embedllm chat`: a conversation at a terminal or over a pipe, one turn per line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click

from embedllm.cancel import Cancel
from embedllm.cli.image_option import image_option, image_parts, user_message
from embedllm.cli.line_input import line_reader
from embedllm.cli.messages_file import read_messages, typed_path, write_messages
from embedllm.cli.options import Settings, note, reply_options, say_error
from embedllm.cli.reply_output import say_end, say_statistics, show, stopped_by_ctrl_c
from embedllm.cli.tool_turns import McpTools, mcp_options, opened_tools
from embedllm.errors import ContextFull, EmbedError, PackageError, TemplateError
from embedllm.files.nearest import nearest
from embedllm.generation.chunk import Statistics
from embedllm.generation.completion import Completion
from embedllm.generation.options import WhenFull
from embedllm.model.conversation import Conversation
from embedllm.sampling.options import Sampling
from embedllm.text.chat_template import JSON, Message

_PROMPT, _MORE = "> ", ". "
_BLOCK = '"""'
_EXITS = ("/exit", "/quit", "/bye")
_PRESSES = 2  # of Ctrl-C at the prompt, then the way out is named


@click.command(short_help="Chat with a model.")
@click.option("--when-full", type=click.Choice(get_args(WhenFull)),
              help="Context policy: error (default), drop-oldest (drops the oldest turns) or shift (context shift, "
              "also within a reply).")  # fmt: skip
@image_option
@mcp_options
@click.argument("model_argument", metavar="[MODEL]", required=False)
@reply_options
def chat(
    model_argument: str | None,
    settings: Settings,
    *,
    when_full: WhenFull | None,
    images: tuple[Path, ...],
    mcp: Path | None,
    mcp_allow: tuple[str, ...],
) -> None:
    """Chat with a model: MODEL, as --model has it, or the demo.

    Each line is a turn; a trailing backslash continues it on the next line, and lines between two lines of \"\"\" are
    one turn, and so is a pasted text where Python has readline. Ctrl-C stops a reply or clears the line, Ctrl-D exits.
    A terminal renders Markdown; --plain, or a pipe, gets replies as they are. With piped input each line is a turn too,
    and the exit code is 1 if a turn failed. What is typed is kept for the arrow keys of the next chat.

    \b
    /reset         clear the history; the system prompt is kept
    /system TEXT   set the system prompt; without TEXT: remove it
    /save FILE     save the messages: as JSON if FILE ends in .json, otherwise with the KV cache
    /open FILE     open a saved conversation
    /image FILE    put an image in front of the next text; repeatable
    /stats         token counts and timings of the last reply, and context usage
    /help          show this list
    /exit          exit; /quit and /bye too
    """
    settings = settings.of_model(model_argument)
    with opened_tools(mcp, mcp_allow) as tools, settings.open_model() as llm:
        llm.package.check_generates()
        if not llm.can_chat:
            raise TemplateError(f"'{llm.name}' has no chat template; use 'embedllm run' for plain text.")
        is_typed = sys.stdin.isatty()
        if is_typed:
            note(f"{llm.name} on {llm.device.name}, context {llm.context} tokens. /help lists the commands.")
        conversation = llm.conversation(settings.system, tools=None if tools is None else tools.servers.tools,
                                        variables=settings.variables, when_full=when_full or "error")  # fmt: skip
        talk = Talk(conversation, settings, settings.merge_sampling(llm.sampling), when_full=when_full, tools=tools)
        with closing(talk):
            talk.add_images(images)
            talk.run(line_reader([*_commands(), *_EXITS[1:]], is_typed=is_typed), is_typed=is_typed)
    if talk.failures and not is_typed:
        click.get_current_context().exit(1)


@dataclass(frozen=True, slots=True)
class Turn:
    """What was typed."""

    text: str
    is_command: bool


def read_turn(read_line: Callable[[str], str]) -> Turn:
    """The next turn; the end of the input ends an open block too. EOFError when there was nothing before it.

    read_line: takes a prompt, gives a line without its end, raises EOFError.
    """
    line = read_line(_PROMPT)
    if line.strip() == _BLOCK:
        lines: list[str] = []
        with suppress(EOFError):
            while (line := read_line(_MORE)).strip() != _BLOCK:
                lines.append(line)
        return Turn("\n".join(lines), is_command=False)
    text = line
    with suppress(EOFError):
        while text.endswith("\\"):
            text = text[:-1] + "\n"
            text += read_line(_MORE)
    return Turn(text, is_command=line.startswith("/") and "\n" not in line)


class Talk:
    """The state of one chat, and what its commands do to it."""

    def __init__(
        self,
        conversation: Conversation,
        settings: Settings,
        sampling: Sampling,
        *,
        when_full: WhenFull | None,
        tools: McpTools | None = None,
    ) -> None:
        self.conversation = conversation  # /open changes it
        self._when_full: WhenFull | None = when_full  # None: as a file says
        self._tools = tools
        self.failures = 0  # turns and commands
        self._settings = settings
        self._sampling = sampling
        self._last: Statistics | None = None
        self._images: list[JSON] = []  # of the next turn
        self._actions: dict[str, Callable[[str], None]] = {
            "/reset": self._reset,
            "/system": self._set_system,
            "/save": self._save,
            "/open": self._open,
            "/image": self._add_image,
            "/stats": self._say_stats,
            "/help": _help,
        }

    def run(self, read_line: Callable[[str], str], *, is_typed: bool) -> None:
        """Takes turns until the input ends or /exit."""
        presses = 0
        while True:
            try:
                turn = read_turn(read_line)
                presses = 0
                if turn.is_command and turn.text.split()[0] in _EXITS:
                    return
                if turn.text.strip():
                    self._take(turn)
            except EOFError:
                if is_typed:
                    note("")
                return
            except KeyboardInterrupt:
                if not is_typed:
                    raise
                presses += 1
                note("\n(Ctrl-D or /exit leaves)" if presses == _PRESSES else "")  # the line is dropped

    def _take(self, turn: Turn) -> None:
        try:
            if turn.is_command:
                self._command(turn.text)
            else:
                self._reply(turn.text)
        except ContextFull as error:
            is_error = self.conversation.when_full == "error"
            self._fail(
                f"{error} Or start a new conversation: /reset"
                + (", or use --when-full drop-oldest." if is_error else "")
            )
        except (EmbedError, OSError, ValueError) as error:
            self._fail(str(error))

    def _fail(self, message: str) -> None:
        self.failures += 1
        say_error(message)

    def _command(self, text: str) -> None:
        name, *rest = text.split(maxsplit=1)
        action = self._actions.get(name)
        if action is None:
            near = nearest(name, [*self._actions, *_EXITS])
            self._fail(
                f"unknown command '{name}'; /help lists the commands.{near} Start with a space to send it as text."
            )
        else:
            action(rest[0].strip() if rest else "")

    def _reply(self, text: str) -> None:
        message, self._images = user_message(text, self._images), []
        reply = (
            self._plain_reply(message)
            if self._tools is None
            else self._tools.reply(self.conversation, message, self._sampling, self._settings)
        )
        before = self._last.dropped_tokens if self._last else 0
        self._last = reply.statistics
        if (dropped := reply.statistics.dropped_tokens) != before:
            note(f"(the context is full: {dropped} tokens at the start of the conversation were dropped)")
        say_end(reply, self.conversation.model.context, remedy="/reset starts a new conversation")
        if self._settings.stats:
            say_statistics(reply.statistics)

    def _plain_reply(self, message: Message) -> Completion:
        cancel = Cancel()
        with stopped_by_ctrl_c(cancel):
            chunks = self.conversation.stream(message, self._sampling, cancel=cancel, **self._settings.reply)
            return show(chunks, reasoning=self._settings.reasoning == "show", is_markdown=self._settings.is_markdown)

    def _reset(self, _: str) -> None:
        messages = self.conversation.messages
        messages[:] = [message for message in messages[:1] if message["role"] == "system"]
        self.conversation.close()  # its KV, which /save would write
        note("(history cleared)")

    def add_images(self, files: Sequence[Path]) -> None:
        """Files that go with the next turn. Raises ValueError for what is no image, OSError for what cannot be read."""
        self._images += image_parts(files)

    def _add_image(self, name: str) -> None:
        if not name:
            self._fail("/image needs the name of a file")
            return
        path = typed_path(name)
        self.add_images([path])
        note(f"('{path}' goes with the next text)")

    def _set_system(self, text: str) -> None:
        messages = self.conversation.messages
        has_system = bool(messages) and messages[0]["role"] == "system"
        messages[: int(has_system)] = [{"role": "system", "content": text}] if text else []
        note("(system prompt set)" if text else "(system prompt removed)")

    def _save(self, name: str) -> None:
        if not name:
            self._fail("/save needs the name of a file")
            return
        path = typed_path(name)
        if _is_json(path):
            write_messages(path, self.conversation.messages)
        else:
            _save_whole(self.conversation, path)
        note(f"(saved {len(self.conversation.messages)} messages to '{path}')")

    def _open(self, name: str) -> None:
        if not name:
            self._fail("/open needs the name of a file")
            return
        path = typed_path(name)
        if _is_json(path):
            self.conversation.messages[:] = read_messages(path)
            self.conversation.close()  # the KV of the previous history
        else:
            try:
                opened = Conversation.open(self.conversation.model, path, when_full=self._when_full)
            except OSError as error:
                raise EmbedError(f"cannot read '{path}': {error.strerror or error}.") from error
            self.conversation.close()
            self.conversation = opened
            if self._tools is not None:  # the file has their schemas, as they were
                opened.tools = self._tools.servers.tools
        note(f"(opened {len(self.conversation.messages)} messages of '{path}')")

    def close(self) -> None:
        self.conversation.close()

    def _say_stats(self, _: str) -> None:
        if self._last is None:
            note("(no reply yet)")
            return
        say_statistics(self._last)
        context = self.conversation.model.context
        used = min(self._last.prompt_tokens + self._last.tokens, context)  # more when tokens were dropped on the way
        note(f"context: {used} of {context} tokens after that reply")


def _save_whole(conversation: Conversation, path: Path) -> None:
    """Raises EmbedError where that fails, and for a file that is there and no saved conversation."""
    from embedllm.model.saved_conversation import read_conversation  # numpy

    try:
        if path.exists():
            read_conversation(path)
        conversation.save(path)
    except PackageError as error:
        raise EmbedError(f"{error} It is not overwritten; choose another name.") from error
    except OSError as error:
        raise EmbedError(f"cannot write '{path}': {error.strerror or error}.") from error


def _is_json(path: Path) -> bool:
    """Whether a file holds the messages alone."""
    return path.suffix.lower() == ".json"


def _help(_: str) -> None:
    note(_listed())


def _commands() -> list[str]:
    """The names of the commands, as /help lists them."""
    return [line.split()[0] for line in _listed().splitlines() if line.startswith("/")]


def _listed() -> str:
    assert chat.help is not None
    return inspect.cleandoc(chat.help).partition("\b\n")[2]
