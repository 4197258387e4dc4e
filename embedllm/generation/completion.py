"""A whole reply, and how one is made of its chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, overload

from embedllm.generation.chunk import Chunk, Statistics
from embedllm.sampling.sampler import Picked
from embedllm.tools.calls import ToolCall, assistant_message

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole reply."""

    text: str
    """The answer, without reasoning and tool calls."""
    tokens: tuple[int, ...]
    """What was generated, the stop token among it."""
    logprobs: tuple[float, ...]
    """Of each token, natural log, in the model's own distribution."""
    top_logprobs: tuple[tuple[Picked, ...], ...]
    """For each token its most probable ones, when logprobs asked for them."""
    finish_reason: str
    """Why it ended: "stop", "length", "context", "cancelled" or "timeout"."""
    stopped_by: str | int | None
    """Of the finish_reason "stop": the stop string or stop token; None = the constraint."""
    statistics: Statistics
    """What it cost."""
    reasoning: str = ""
    """What the model thought before the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls of tools, those that cannot be read among them."""

    @property
    def message(self) -> dict[str, JSON]:
        """The reply as a message to append to a conversation, with its reasoning and tool calls."""
        return assistant_message(self.text, self.reasoning, self.tool_calls)

    @overload
    def parse(self, kind: type[T]) -> T: ...

    @overload
    def parse(self, kind: object) -> object: ...

    def parse(self, kind: type[T] | object) -> T | object:
        """The answer as a value of the type that was its response_format, such as a dataclass or list[int].

        Raises ValueError where the text stands for none, as when max_tokens has cut it off.
        """
        from embedllm.sampling.structured.response_format import read_reply, type_name

        try:
            return read_reply(self.text, kind)
        except ValueError as error:
            remedy = " Give the reply more max_tokens." if self.finish_reason == "length" else ""
            ended = f"the reply, which ended by '{self.finish_reason}'"
            raise ValueError(f"{ended}, cannot be read as {type_name(kind)}: {error}.{remedy}") from error


def collect(chunks: Iterable[Chunk]) -> Completion:
    """A whole reply from its chunks."""
    all_chunks = list(chunks)
    steps = [chunk for chunk in all_chunks if chunk.token is not None]
    return Completion(
        text="".join(chunk.text for chunk in all_chunks),
        tokens=tuple(chunk.token for chunk in steps if chunk.token is not None),
        logprobs=tuple(chunk.logprob for chunk in steps if chunk.logprob is not None),
        top_logprobs=tuple(chunk.top_logprobs for chunk in steps if chunk.top_logprobs),
        finish_reason=all_chunks[-1].finish_reason or "cancelled",
        stopped_by=all_chunks[-1].stopped_by,
        statistics=all_chunks[-1].statistics,
        reasoning="".join(chunk.reasoning for chunk in all_chunks),
        tool_calls=tuple(call for chunk in all_chunks for call in chunk.tool_calls),
    )
