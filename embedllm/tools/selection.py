"""The reply format of a model: the one of the table that reads what the model's template shows, else a learnt one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from embedllm.tools.calls import Parts
from embedllm.tools.families import GENERIC, formats_by_signs
from embedllm.tools.formats import ToolFormat, loose, mark_texts, pattern
from embedllm.tools.learning import learnt_format
from embedllm.tools.reasoning import REASONING, ReasoningFormat, reasoning_by_signs
from embedllm.tools.reply_parser import ReplyFormat, reply_reader
from embedllm.tools.template_probe import ANSWER, THOUGHT, MadeCall, Shown, TemplateProbe, call_schema, is_equal

if TYPE_CHECKING:
    from embedllm.text.chat_template import ChatTemplate

_FIRST = MadeCall("find_item", {"place": 'the "old" town', "count": 3}, "aB3dE6gH9")
_SECOND = MadeCall("list_all", {"kind": "a b"}, "bC4eF7hI0")
_ROWS = ((False, (_FIRST, _SECOND)), (True, (_FIRST, _SECOND)), (False, (_FIRST,)), (True, (_FIRST,)))


def reply_format(template: ChatTemplate) -> ReplyFormat:
    """How a model writes its replies, as far as its chat template shows it.

    A template that shows no calls is judged by the marks in it; one that does not even show tools means plain JSON.
    Raises TemplateError when it is no template.
    """
    probe = TemplateProbe(template)
    text = "\n".join(template.templates.values())
    candidates = formats_by_signs(text)
    reasoning = _reasoning(probe, template)
    gaps = probe.gaps()
    first: tuple[bool, tuple[MadeCall, ...]] | None = None
    for as_text, calls in _ROWS:
        shown = probe.calls(calls, as_text=as_text)
        if shown is None or not all(call.name in shown.reply for call in calls):
            continue
        first = first or (as_text, calls)
        reading = [row for row in candidates if reads_back(ReplyFormat(calls=row, reasoning=reasoning), shown, calls)]
        exact = next((row for row in reading if row is not GENERIC and _describes(row, shown.reply)), None)
        learnt = learnt_format(probe, as_text=as_text) if exact is None and len(calls) > 1 else None
        if learnt and not reads_back(ReplyFormat(calls=learnt, reasoning=reasoning), shown, calls):
            learnt = None
        tool_format = exact or _joined(learnt, reading[0] if reading else None)
        if tool_format is not None:
            return replace(_format(tool_format, reasoning, as_text=as_text, is_alone=len(calls) == 1), gaps=gaps)
    if gaps.hides_tools:
        return ReplyFormat(calls=GENERIC, reasoning=reasoning, gaps=gaps.without_calls())
    row = candidates[0]
    as_text, calls = first or (row.name == "deepseek", (_FIRST, _SECOND))
    return _format(row, reasoning, as_text=as_text, is_alone=row.name in ("llama3", "harmony") or len(calls) == 1)


def _describes(row: ToolFormat, reply: str) -> bool:
    """Whether the grammar of a format would write calls as the template shows them."""
    head = re.split(r"\$(?:arguments|pairs|python|gemma|tree)", row.calls[0])[0].replace("$name", _FIRST.name)
    return re.search(loose(row.section[0].strip()) + r"\s*" + pattern(head.lstrip()), reply) is not None


def _joined(learnt: ToolFormat | None, row: ToolFormat | None) -> ToolFormat | None:
    """What was learnt, with the further ways of writing that the table knows of its family."""
    if learnt is None or row is None or row is GENERIC:
        return learnt or row
    return replace(row, calls=(*learnt.calls, *row.calls), section=learnt.section, between=learnt.between,
                   pair=learnt.pair or row.pair, types=learnt.types or row.types)  # fmt: skip


def reads_back(written: ReplyFormat, shown: Shown, calls: tuple[MadeCall, ...]) -> bool:
    """Whether a format reads these calls, and no others, in what a template shows."""
    parameters = {call.name: call_schema(call) for call in calls}
    for reply in dict.fromkeys((shown.reply, shown.bare)):
        reader = reply_reader(written, shown.prompt, parameters)
        parts = reader.push(reply, "stop") if reader else Parts()
        parsed_calls = parts.tool_calls
        if len(parsed_calls) == len(calls) and all(
            not parsed_call.problem and parsed_call.name == call.name and is_equal(parsed_call.arguments, call)
            for parsed_call, call in zip(parsed_calls, calls, strict=True)
        ):
            return True
    return False


def _format(row: ToolFormat, reasoning: ReasoningFormat | None, *, as_text: bool, is_alone: bool) -> ReplyFormat:
    thinks = None if row.has_channels else reasoning
    return ReplyFormat(calls=row, reasoning=thinks, arguments_as_text=as_text, one_call=is_alone)


def _reasoning(probe: TemplateProbe, template: ChatTemplate) -> ReasoningFormat | None:
    """By the marks around what the template shows of reasoning; by its text where it shows none."""
    by_signs = reasoning_by_signs(template.templates.values())
    shown = probe.thought()
    if shown is None or THOUGHT not in shown.reply or ANSWER not in shown.reply:
        return by_signs
    before, _, after = (shown.prompt + shown.reply).rpartition(THOUGHT)
    for row in (*([by_signs] if by_signs else []), *REASONING):
        if before.rstrip().endswith(row.opening.strip()) and after.lstrip().startswith(row.closing):
            return row
    opening, closing = mark_texts(before)[-1:], mark_texts(after.partition(ANSWER)[0])[:1]
    if not opening or not closing or not before.rstrip().endswith(opening[0]):
        return by_signs
    if not after.lstrip().startswith(closing[0]) or closing[0] in before.rpartition(opening[0])[0]:
        return by_signs  # such as the mark of a turn
    return ReasoningFormat(opening=opening[0], closing=closing[0])
