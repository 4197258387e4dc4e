"""Which readers a reply needs: think tags, tool calls, channels, as the model's templates and the prompt say."""

from __future__ import annotations

from collections.abc import Iterable

from embedllm.tools.calls import Parameters, Parts, ReplyReader
from embedllm.tools.formats import ToolFormat
from embedllm.tools.harmony import HarmonyReader
from embedllm.tools.reasoning import ThinkReader, think_tags
from embedllm.tools.stream_parser import CallReader


class ThinkThenCall:
    """Parts reasoning first, and calls from what follows it."""

    def __init__(self, thinking: ThinkReader, calling: CallReader) -> None:
        self._thinking = thinking
        self._calling = calling

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece."""
        first = self._thinking.push(piece, finish_reason)
        then = self._calling.push(first.text, finish_reason)
        return Parts(then.text, first.reasoning, then.tool_calls)


def reply_reader(
    written: ToolFormat, templates: Iterable[str], prompt: str, parameters: Parameters | None
) -> ReplyReader | None:
    """What parts the reply to a prompt; None where there is nothing to part.

    prompt: as the template wrote it. parameters: of the tools, None where calls are not looked for.
    """
    if written.has_channels:
        return HarmonyReader()
    tags = think_tags(templates)
    thinking = ThinkReader(tags, is_open=prompt.rstrip().endswith(tags[0])) if tags else None
    calling = None if parameters is None else CallReader(written, parameters)
    if thinking and calling:
        return ThinkThenCall(thinking, calling)
    return thinking or calling


def reply_marks(written: ToolFormat, templates: Iterable[str], *, has_tools: bool) -> tuple[str, ...]:
    """The marks that the reader looks for; those of them that are special tokens have to be part of the text."""
    calls = written.marks if has_tools or written.has_channels else ()
    return (*calls, *(think_tags(templates) or ()))
