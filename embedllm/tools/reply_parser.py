"""Which readers a reply needs: reasoning, tool calls, channels, as the model's reply format and the prompt say."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.tools.calls import Parameters, Parts, ReplyReader
from embedllm.tools.channels import ChannelReader
from embedllm.tools.formats import ToolFormat
from embedllm.tools.generic_prompt import NO_GAPS, TemplateGaps
from embedllm.tools.reasoning import ReasoningFormat, ThinkReader
from embedllm.tools.stream_parser import CallReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """What a model's replies consist of, and what its chat template wants of them in a history."""

    calls: ToolFormat
    reasoning: ReasoningFormat | None
    arguments_as_text: bool = False  # the template wants the arguments of a call as JSON text
    one_call: bool = False  # it has room for one call in a message
    gaps: TemplateGaps = NO_GAPS  # what of tools it does not show


class ThinkThenCall:
    """Parts reasoning first, and calls from what follows it.

    Where the model ended without ending its thoughts, a call in them counts only when it can be read, and names a tool.
    """

    def __init__(self, thinking: ThinkReader, calling: CallReader, parameters: Parameters) -> None:
        self._thinking = thinking
        self._calling = calling
        self._parameters = parameters
        self._is_answer = False

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece."""
        first = self._thinking.push(piece, finish_reason)
        then = self._calling.push(first.text, finish_reason)
        is_inside = not self._is_answer and self._thinking.ended_inside
        self._is_answer = self._is_answer or bool(first.text)
        if is_inside and not any(not call.problem and self._is_known(call.name) for call in then.tool_calls):
            return Parts("", first.reasoning + self._thinking.gap + first.text)
        return Parts(then.text, first.reasoning, then.tool_calls, then.call_deltas)

    def _is_known(self, name: str) -> bool:
        return not self._parameters or name in self._parameters


def reply_reader(written: ReplyFormat, prompt: str, parameters: Parameters | None) -> ReplyReader | None:
    """What parts the reply to a prompt; None where there is nothing to part.

    prompt: as the template wrote it. parameters: of the tools, None where calls are not looked for.
    """
    if written.calls.has_channels:
        return ChannelReader(written.calls, parameters or {})
    thinks = written.reasoning
    calls = written.calls.openings if parameters is not None and written.calls.is_certain else ()
    is_open = thinks is not None and prompt.rstrip().endswith(thinks.opening.strip())
    thinking = ThinkReader(thinks, is_open=is_open, calls=calls) if thinks else None
    calling = None if parameters is None else CallReader(written.calls, parameters, prompt=prompt)
    if thinking and calling and parameters is not None:
        return ThinkThenCall(thinking, calling, parameters)
    return thinking or calling


def reply_marks(written: ReplyFormat, *, has_tools: bool) -> tuple[str, ...]:
    """The marks that the reader looks for; those of them that are special tokens have to be part of the text."""
    calls = written.calls.marks if has_tools or written.calls.has_channels else ()
    return (*calls, *(written.reasoning.marks if written.reasoning else ()))
