"""One run of the model as events: text for the user apart from tool calls, and what was cut off said."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from embedllm import Cancel, Chunk, Completion, Message, Statistics, ToolCall
from embedllm.generation.completion import collect
from embedllm.text.function_schema import JSON

from .retrieval import Passage

VARIABLES: Mapping[str, JSON] = {"enable_thinking": False}  # Qwen 3 answers at once; other templates don't read it


class Encoder(Protocol):
    """What is used of a tokenizer."""

    def encode(self, text: str, *, special: bool) -> list[int]: ...


class ChatModel(Protocol):
    """What is used of embedllm.Model; a test brings its own."""

    @property
    def context(self) -> int: ...
    @property
    def tokenizer(self) -> Encoder: ...
    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, JSON]] | None = None,
        variables: Mapping[str, JSON] | None = None,
    ) -> str: ...
    def stream(
        self,
        prompt: Sequence[Message],
        *,
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, JSON]] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Iterator[Chunk]: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """What the user should know: something left out, cut off, or under way."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool was called. ran: otherwise `result` says what was wrong."""

    call: ToolCall
    ran: bool
    result: str


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a turn. passages: what the model was given to read."""

    statistics: Statistics
    passages: tuple[Passage, ...] = ()


Event = Text | Notice | ToolRun | Done


def stream_reply(
    model: ChatModel,
    messages: Sequence[Message],
    cancel: Cancel,
    *,
    max_tokens: int,
    tools: Sequence[Mapping[str, JSON]] = (),
) -> Generator[Text | Notice, None, Completion]:
    """The reply as it comes; at the end the whole of it. The library has parted calls of tools from the text."""
    chunks: list[Chunk] = []
    for chunk in model.stream(messages, max_tokens=max_tokens, tools=tools or None, variables=VARIABLES, cancel=cancel):
        chunks.append(chunk)
        if chunk.text:
            yield Text(chunk.text)
    reply = collect(chunks)
    if reply.finish_reason == "cancelled":
        yield Notice("stopped")
    if reply.finish_reason in ("length", "context"):
        yield Notice(f"cut off after {reply.statistics.tokens} tokens")
    return reply


def count_tokens(model: ChatModel, text: str) -> int:
    """How many tokens a text has; one that a chat template wrote holds its special tokens already."""
    return len(model.tokenizer.encode(text, special=False))


def total(replies: Sequence[Completion]) -> Statistics:
    """Several runs together."""
    runs = [reply.statistics for reply in replies]
    return Statistics(
        prompt_tokens=sum(run.prompt_tokens for run in runs),
        cached_tokens=sum(run.cached_tokens for run in runs),
        tokens=sum(run.tokens for run in runs),
        prefill_s=sum(run.prefill_s for run in runs),
        decode_s=sum(run.decode_s for run in runs),
    )
