"""The assistant without a terminal: a question goes in, events come out; what it asks for, its caller answers."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from embedllm import Cancel, Completion, ContextFull, Message, ToolCall
from embedllm.tools.calls import result_message

from .history import MOST_TURNS, History
from .reply import VARIABLES, ChatModel, Done, Event, Notice, ToolRun, count_tokens, stream_reply, total
from .retrieval import Documents, Passage, UnreadableFile, read_text
from .summary import summarise
from .tools import Tool, outcome

MOST_ROUNDS = 4  # of tool calls in a turn
LONGEST_REPLY = 1024  # tokens; less where the context is small
SYSTEM = "You are a helpful assistant with access to tools. Answer briefly."
_NO_ANSWER = "(no answer)"  # many templates want a reply to each question


class Assistant:
    """Questions, tools and documents over one model and one history.

    allow: asked before each tool runs.
    """

    def __init__(
        self,
        model: ChatModel,
        tools: Mapping[str, Tool],
        *,
        history: History | None = None,
        allow: Callable[[ToolCall, Tool], bool] = lambda call, tool: not tool.has_side_effects,
    ) -> None:
        self.documents: Documents | None = None
        self.history = history or History()
        self._model = model
        self._tools = tools
        self._schemas = [tool.schema for tool in tools.values()]
        self._allow = allow
        self._reply_tokens = min(LONGEST_REPLY, model.context // 4)

    def answer(self, question: str, cancel: Cancel | None = None) -> Iterator[Event]:
        """One turn: passages are looked up, the model answers or calls tools and goes on. Ends with Done.

        The turn goes into the history, unless it was cancelled before there was any text.
        Raises ContextFull when question and tool results alone are too long, OSError when the history is not written.
        """
        cancel = cancel or Cancel()
        passages, left_out = self._passages(question)
        if left_out:
            yield Notice(f"{left_out} of {left_out + len(passages)} passages that match are left out: no room for them")
        new_messages: list[Message] = [{"role": "user", "content": _with_passages(question, passages)}]
        replies: list[Completion] = []
        forgotten = 0
        while True:
            messages, now_forgotten = self._fit(new_messages)
            if now_forgotten > forgotten:
                forgotten = now_forgotten
                yield Notice(f"the context is full: oldest turns left out: {forgotten}; /new begins afresh")
            reply = yield from stream_reply(
                self._model, messages, cancel, max_tokens=self._reply_tokens, tools=self._schemas
            )
            replies.append(reply)
            if not reply.tool_calls or reply.finish_reason == "cancelled":
                break
            if len(replies) > MOST_ROUNDS:
                yield Notice(f"stopped after {MOST_ROUNDS} rounds of tool calls, the model wants another")
                break
            new_messages.append(reply.message)
            for call in reply.tool_calls:
                ran, result = outcome(call, self._tools, self._allow)
                new_messages.append(result_message(call, result))
                yield ToolRun(call, ran, result)
        shown = replies[-1].text.strip()
        if shown or len(replies) > 1 or replies[-1].finish_reason != "cancelled":
            new_messages.append({"role": "assistant", "content": shown or _NO_ANSWER})
            yield from self._remember([{"role": "user", "content": question}, *new_messages[1:]])
        yield Done(total(replies), passages)

    def summarise(self, file: Path, cancel: Cancel | None = None) -> Iterator[Event]:
        """The summary of a document. Ends with Done. Raises UnreadableFile, ContextFull, OSError."""
        cancel = cancel or Cancel()
        try:
            text = read_text(file)
        except UnreadableFile as error:
            raise UnreadableFile(f"cannot summarise '{file}': {error}") from error
        if not text.strip():
            raise UnreadableFile(f"cannot summarise '{file}': it has no text")
        replies = yield from summarise(self._model, file.name, text, cancel, reply_tokens=self._reply_tokens)
        if not cancel.cancelled:
            summary = replies[-1].text.strip() or _NO_ANSWER
            yield from self._remember(
                [{"role": "user", "content": f"Summarise {file.name}."}, {"role": "assistant", "content": summary}]
            )
        yield Done(total(replies))

    def _passages(self, question: str) -> tuple[tuple[Passage, ...], int]:
        """The best passages that fit into half of the room beside the question; how many others match."""
        if self.documents is None:
            return (), 0
        matches = self.documents.search(question)
        alone = self._count(_asking(question))
        most = alone + (self._model.context - self._reply_tokens - alone) // 2
        passages: list[Passage] = []
        for passage in matches:
            if self._count(_asking(_with_passages(question, [*passages, passage]))) <= most:
                passages.append(passage)
        return tuple(passages), len(matches) - len(passages)

    def _fit(self, new_messages: Sequence[Message]) -> tuple[list[Message], int]:
        """The prompt: system, as many of the newest turns as fit, this turn; how many older turns are left out."""
        turns, room = self.history.turns, self._model.context - self._reply_tokens

        def prompt(start: int) -> list[Message]:
            return [*_asking(), *(message for turn in turns[start:] for message in turn), *new_messages]

        start = bisect.bisect_left(range(len(turns) + 1), True, key=lambda start: self._count(prompt(start)) <= room)
        if start > len(turns):
            tokens = self._count(prompt(len(turns)))
            raise ContextFull(
                f"question, passages and tool results have {tokens} tokens; the context's {self._model.context} leave "
                f"{room} beside the reply. Ask for less, or take a model with a larger context.",
                tokens=tokens, limit=room,
            )  # fmt: skip
        return prompt(start), start

    def _remember(self, turn: list[Message]) -> Iterator[Event]:
        if self.history.add(turn):
            yield Notice(f"the oldest turn is forgotten for good: {MOST_TURNS} are kept")

    def _count(self, messages: Sequence[Message]) -> int:
        """The tokens of a prompt, with the tools in it."""
        return count_tokens(self._model, self._model.prompt(messages, tools=self._schemas or None, variables=VARIABLES))


def _asking(question: str | None = None) -> list[Message]:
    system: Message = {"role": "system", "content": SYSTEM}
    return [system] if question is None else [system, {"role": "user", "content": question}]


def _with_passages(question: str, passages: Iterable[Passage]) -> str:
    """What the model is asked: the passages, and then the question."""
    sources = "\n\n".join(f"[{passage}]\n{passage.text.strip()}" for passage in passages)
    if not sources:
        return question
    return f"{sources}\n\nAnswer from these passages, and say so when they do not hold the answer.\n\n{question}"
