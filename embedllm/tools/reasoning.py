"""Reasoning apart from the answer, in a reply that comes in pieces: think tags here, channels in channels.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from embedllm.tools.calls import Parts
from embedllm.tools.formats import mark_texts
from embedllm.tools.stream_parser import begun


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """How a family of models writes what it thinks before it answers.

    Sources: the families' chat templates.
    """

    opening: str
    closing: str
    around: tuple[str, ...] = ()  # marks around the answer, which say nothing

    @property
    def marks(self) -> tuple[str, ...]:
        """What may be special tokens, and is part of the text that is read."""
        single = [mark for text in (self.opening, self.closing, *self.around) for mark in mark_texts(text)]
        return (self.opening, self.closing, *self.around, *single)


_COHERE = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
_KIMI = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
REASONING = (  # the first whose closing mark a template has is the template's
    ReasoningFormat(opening="<|channel>thought\n", closing="<channel|>"),
    ReasoningFormat(opening="<seed:think>", closing="</seed:think>"),
    ReasoningFormat(opening="<|START_THINKING|>", closing="<|END_THINKING|>", around=_COHERE),
    ReasoningFormat(opening="<mm:think>", closing="</mm:think>"),
    ReasoningFormat(opening="<ifm|think>", closing="</ifm|think>"),
    ReasoningFormat(opening="<|inner_prefix|>", closing="<|inner_suffix|>"),
    ReasoningFormat(opening="<|open|>think<|sep|>", closing="<|close|>think<|sep|>", around=_KIMI),
    ReasoningFormat(opening="<|think|>", closing="<|end|>", around=("<|begin|>assistant", "<|content|>")),
    ReasoningFormat(opening="Here are my reasoning steps:\n", closing="[BEGIN FINAL RESPONSE]",
                    around=("[END FINAL RESPONSE]",)),
    ReasoningFormat(opening="<think>", closing="</think>"),
    ReasoningFormat(opening="[THINK]", closing="[/THINK]"),
    ReasoningFormat(opening="<thinking>", closing="</thinking>"),
)  # fmt: skip


def reasoning_by_signs(templates: Iterable[str]) -> ReasoningFormat | None:
    """The format that a model's chat templates know; None for a model that has none."""
    text = "\n".join(templates)
    return next((row for row in REASONING if row.closing in text and row.opening.strip() in text), None) or next(
        (row for row in REASONING if row.closing in text and row.closing.startswith(("</", "[/"))), None
    )


class ThinkReader:
    """Parts what stands between the marks at the beginning of a reply from all that follows.

    is_open: the prompt ended with the opening mark. calls: the marks of tool calls. A model may call a tool without
    ending its thoughts: what begins with such a mark is held until they end, and is no thought where they do not.
    Newlines beside the marks belong to neither; marks further on are text.
    """

    def __init__(self, written: ReasoningFormat, *, is_open: bool = False, calls: tuple[str, ...] = ()) -> None:
        self._opening, self._closing = written.opening.strip(), written.closing
        self._around = written.around
        self._calls = calls
        self._is_open = is_open
        self._buffer = ""
        self._place: Literal["start", "thought", "gap", "answer"] = "start"
        self._has_thought = False
        self.ended_inside = False  # the reply ended with a call in its thoughts
        self.gap = ""  # what stood between the thoughts and that call

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece."""
        if self._place == "answer" and not self._around:
            return Parts(piece)
        self._buffer += piece
        is_end = finish_reason is not None
        if self._place == "start":
            self._begin(is_end=is_end)
        thought = self._thought(is_end=is_end) if self._place == "thought" else ""
        if self._place not in ("gap", "answer"):
            return Parts("", thought)
        text = self._answer(is_end=is_end)
        if self._place == "gap":
            text = text.lstrip("\n")
            self._place = "answer" if text else "gap"
        return Parts(text, thought)

    def _begin(self, *, is_end: bool) -> None:
        """Finds out what the reply begins with, as soon as that is clear."""
        start = self._buffer.lstrip()
        if start.startswith(self._opening):
            self._place, self._buffer = "thought", start.removeprefix(self._opening)
        elif is_end or not self._opening.startswith(start):
            self._place = "thought" if self._is_open else "answer"

    def _thought(self, *, is_end: bool) -> str:
        before, tag, after = self._buffer.partition(self._closing)
        if tag:
            thought, self._buffer, self._place = before.rstrip("\n"), after, "gap"
        else:
            call = min((at for mark in self._calls if (at := before.find(mark)) >= 0), default=-1)
            if call >= 0 and is_end:
                thought, self._buffer, self._place = before[:call].rstrip(), before[call:], "answer"
                self.ended_inside, self.gap = True, before[len(thought) : call]
            else:
                before = before[:call] if call >= 0 else before
                open_end = 0 if is_end else begun(before, (self._closing, *self._calls))
                thought = before[: len(before) - open_end].rstrip("\n")
                self._buffer = "" if is_end else self._buffer[len(thought) :]
        if not self._has_thought:
            thought = thought.lstrip("\n")
        self._has_thought = self._has_thought or bool(thought)
        return thought

    def _answer(self, *, is_end: bool) -> str:
        """What is held, without the marks around an answer."""
        text = self._buffer
        for mark in self._around:
            text = text.replace(mark, "")
        open_end = 0 if is_end or not self._around else begun(text, self._around)
        text, self._buffer = text[: len(text) - open_end], text[len(text) - open_end :]
        return text
