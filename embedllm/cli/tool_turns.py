"""Replies that call tools of MCP servers: --mcp, and the question before a call runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from embedllm.cancel import Cancel
from embedllm.cli.options import Settings, note
from embedllm.cli.reply_output import ReplyWriter, stopped_by_ctrl_c
from embedllm.generation.completion import Completion
from embedllm.model.agent import run_tools
from embedllm.model.conversation import Conversation
from embedllm.model.model import Model
from embedllm.model.tool_reply import Decision, PausedRun, ToolOutcome
from embedllm.sampling.options import Sampling
from embedllm.text.chat_template import JSON, Message
from embedllm.tools.calls import ToolCall

if TYPE_CHECKING:
    from embedllm.integrations.mcp import McpServers

C = TypeVar("C", bound=Callable[..., object])
_ALL = "*"
_SHOWN_CHARS = 200  # of a result


def mcp_options(command: C) -> C:
    """--mcp and --mcp-allow of a command, which it gets as `mcp` and `mcp_allow`."""
    allow = click.option("--mcp-allow", multiple=True, metavar="NAME",
                         help="A tool of --mcp that runs without asking; '*': all of them. Repeatable.")  # fmt: skip
    servers = click.option("--mcp", type=click.Path(path_type=Path), metavar="FILE",
                           help='Tools of the MCP servers in a JSON file {"mcpServers": {...}}. Each call is shown and '
                           "asked for.")  # fmt: skip
    return servers(allow(command))


@contextmanager
def opened_tools(file: Path | None, allowed: Sequence[str]) -> Iterator[McpTools | None]:
    """The tools of the servers in the file; None: there is no file. Raises UsageError for an allowed name of none."""
    if file is None:
        if allowed:
            raise click.UsageError("--mcp-allow needs --mcp FILE.")
        yield None
        return
    from embedllm.integrations.mcp import McpServers

    with McpServers(file) as servers:
        tools = McpTools(servers, set(allowed))
        if unknown := sorted(tools.allowed - {_ALL, *tools.names}):
            raise click.UsageError(
                f"--mcp-allow {unknown[0]}: there is no such tool; there are {', '.join(tools.names)}."
            )
        if not tools.names:
            raise click.UsageError(f"the servers of '{file}' have no tools.")
        note(f"tools: {', '.join(tools.names)}")
        yield tools


@dataclass(slots=True)
class McpTools:
    """The tools of open servers, and those that may run without asking."""

    servers: McpServers
    allowed: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        return self.servers.names

    def reply(
        self,
        model: Model | Conversation,
        message: str | Message | Sequence[Message],
        sampling: Sampling,
        settings: Settings,
        variables: Mapping[str, JSON] | None = None,
    ) -> Completion:
        """Shows the replies of the tool loop, asks before calls run, and gives the last reply."""
        prompt: str | Message | Sequence[Message] | PausedRun = message
        decisions: dict[str, Decision] = {}
        tools = self.servers.tools if isinstance(model, Model) else None
        while True:
            cancel = Cancel()
            with (
                stopped_by_ctrl_c(cancel),
                ReplyWriter(
                    reasoning=settings.reasoning == "show",
                    is_markdown=settings.is_markdown,
                    waiting_for="running the tools" if decisions else "reading the prompt",
                ) as writer,
            ):

                def tell(outcome: ToolOutcome, writer: ReplyWriter = writer) -> None:
                    writer.end()
                    note(f"({outcome.call.name}: {_shown(outcome.result)})")

                reply = run_tools(
                    model, prompt, tools, sampling, on_chunk=writer.push, on_call=tell, needs_approval=self._is_asked,
                    decisions=decisions, cancel=cancel, variables=variables, **settings.reply,
                )  # fmt: skip
            if reply.paused is None:
                return reply.completion
            prompt, decisions = reply.paused, {call.id: self._ask(call) for call in reply.paused.pending}

    def _is_asked(self, call: ToolCall) -> bool:
        return not self.allowed & {_ALL, call.name}

    def _ask(self, call: ToolCall) -> Decision:
        """What the user says to a call; without a terminal it does not run."""
        if not self._is_asked(call):  # "always" was said to the one before it
            return True
        note(f"{self.servers.server_of(call.name)}: {call}")  # its values as Python writes them: no control characters
        if not _can_ask():
            note(f"(not run: nobody can be asked; --mcp-allow {call.name} lets it run)")
            return False
        try:
            answer = click.prompt("Run it? y = yes, a = always, n = no, or say why not", default="n", err=True)
        except click.Abort:  # Ctrl-C, Ctrl-D
            note("")
            return False
        if answer.strip().lower() in ("a", "always"):
            self.allowed.add(call.name)
            return True
        return {"y": True, "yes": True, "n": False, "no": False}.get(answer.strip().lower(), answer)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _shown(result: str) -> str:
    """A result in one line, without control characters."""
    text = result if len(result) <= _SHOWN_CHARS else f"{result[:_SHOWN_CHARS]}..."
    return f"{text!r}"[1:-1]
