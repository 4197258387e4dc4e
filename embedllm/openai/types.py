"""Replies in the shapes of OpenAI's chat completions: attributes as in the package `openai`, plain dicts by to_dict().

Fields that OpenAI has for what is never here (audio, refusals, annotations) are left out, but those that clients read
without asking: they are None. Source: the types of the package openai 3.54, which tests/openai compares these with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from embedllm.types import JSON

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class Shape:
    """What all of them can do."""

    __slots__ = ()

    def to_dict(self, *, exclude_none: bool = False) -> dict[str, JSON]:
        """As plain JSON types. exclude_none: without the entries that are None."""
        return cast("dict[str, JSON]", _plain(self, exclude_none=exclude_none))

    def to_json(self, *, exclude_none: bool = False) -> str:
        """As JSON text."""
        return json.dumps(self.to_dict(exclude_none=exclude_none), ensure_ascii=False)

    def model_dump(self, *, exclude_none: bool = False) -> dict[str, JSON]:
        """to_dict() by the name that pydantic has for it."""
        return self.to_dict(exclude_none=exclude_none)

    def model_dump_json(self, *, exclude_none: bool = False) -> str:
        """to_json() by the name that pydantic has for it."""
        return self.to_json(exclude_none=exclude_none)


def _plain(value: object, *, exclude_none: bool) -> object:
    if isinstance(value, Shape):
        members = {field.name: getattr(value, field.name) for field in fields(cast("ChatCompletion", value))}
        return {
            name: _plain(item, exclude_none=exclude_none)
            for name, item in members.items()
            if not (exclude_none and item is None)
        }
    if isinstance(value, list):
        return [_plain(item, exclude_none=exclude_none) for item in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(Shape):
    """The tool that is called. In a stream both are pieces, and None where nothing is new."""

    name: str | None
    """The tool's name."""
    arguments: str | None
    """The arguments as JSON text. It may be no valid JSON when the model wrote none: check before running the tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall(Shape):
    """A call of a tool."""

    id: str
    """What the message with the result names as its tool_call_id."""
    function: Function
    """The tool and its arguments."""
    type: Literal["function"] = "function"
    """There is no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta(Shape):
    """A piece of a call. The first one of a call has its id and name, the others more of the arguments."""

    index: int
    """Of the call in the reply."""
    function: Function
    """The next piece."""
    id: str | None = None
    """In the first piece."""
    type: Literal["function"] | None = None
    """In the first piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Shape):
    """The reply; it may be appended to the messages of the next request as it is."""

    content: str | None
    """The text; None when there are only tool calls."""
    role: Literal["assistant"] = "assistant"
    """Always the same."""
    tool_calls: list[ToolCall] | None = None
    """The calls; None when there are none."""
    reasoning_content: str | None = None
    """What a reasoning model thought before it answered. Not OpenAI's: DeepSeek's and vLLM's name."""
    refusal: None = None
    """OpenAI's field; always None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta(Shape):
    """What a chunk adds to the message; None: nothing."""

    role: Literal["assistant"] | None = None
    """In the first chunk."""
    content: str | None = None
    """More of the text."""
    tool_calls: list[ToolCallDelta] | None = None
    """More of the calls."""
    reasoning_content: str | None = None
    """More of the reasoning. Not OpenAI's."""
    refusal: None = None
    """OpenAI's field; always None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob(Shape):
    """A token that was possible."""

    token: str
    """Its text; bytes that are no whole character are U+FFFD."""
    logprob: float
    """Natural log of its probability."""
    bytes: list[int] | None
    """Its bytes in UTF-8; None when the tokenizer does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob(Shape):
    """A token that was generated."""

    token: str
    """Its text; bytes that are no whole character are U+FFFD."""
    logprob: float
    """Natural log of its probability in the model's own distribution, before temperature and penalties."""
    bytes: list[int] | None
    """Its bytes in UTF-8; None when the tokenizer does not say."""
    top_logprobs: list[TopLogprob]
    """The most probable tokens of this step, as many as `top_logprobs` asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs(Shape):
    """Of each token of a choice or of a chunk, but for those that end the reply."""

    content: list[TokenLogprob]
    """In their order, those of reasoning and tool calls, too."""
    refusal: None = None
    """OpenAI's field; always None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Shape):
    """One of the `n` replies."""

    index: int
    """0 to n - 1."""
    message: Message
    """The reply."""
    finish_reason: FinishReason
    """"stop", "tool_calls", or "length" for max_tokens and for a full context."""
    logprobs: Logprobs | None = None
    """When asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChoice(Shape):
    """The choice that a chunk is of; there is one."""

    index: int
    """0 to n - 1."""
    delta: Delta
    """What is new."""
    finish_reason: FinishReason | None = None
    """In the last chunk of the reply."""
    logprobs: Logprobs | None = None
    """Of this chunk's tokens, when asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokensDetails(Shape):
    """Of the prompt's tokens."""

    cached_tokens: int
    """Held already from an earlier call, not computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Shape):
    """Tokens of a request."""

    prompt_tokens: int
    """Of the prompt as the chat template wrote it."""
    completion_tokens: int
    """Generated for all choices, the tokens that end them among them."""
    total_tokens: int
    """Both together."""
    prompt_tokens_details: PromptTokensDetails
    """What was cached of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion(Shape):
    """A whole reply."""

    id: str
    """New for each request."""
    created: int
    """Seconds since 1970."""
    model: str
    """The name of the loaded model, whatever the request said."""
    choices: list[Choice]
    """The replies, as many as `n`."""
    usage: Usage
    """Tokens of the request."""
    object: Literal["chat.completion"] = "chat.completion"
    """Always the same."""
    system_fingerprint: None = None
    """OpenAI's field; always None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletionChunk(Shape):
    """A piece of a reply that is streamed."""

    id: str
    """The same in all chunks of a reply."""
    created: int
    """Seconds since 1970; the same in all chunks."""
    model: str
    """The name of the loaded model."""
    choices: list[ChunkChoice]
    """One; none in the chunk with the usage."""
    usage: Usage | None = None
    """In a last chunk of its own, with stream_options={"include_usage": True}."""
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    """Always the same."""
    system_fingerprint: None = None
    """OpenAI's field; always None."""


def as_message(message: object) -> Mapping[str, JSON]:
    """A message of a request as a mapping: one already, or an object with model_dump(), such as a reply's message.

    Raises ValueError for anything else.
    """
    if isinstance(message, Mapping):
        return cast("Mapping[str, JSON]", message)
    dump = getattr(message, "model_dump", None)
    if not callable(dump):
        raise ValueError(f"a message is {message!r:.80}; expected a mapping with a 'role', or a reply's message.")
    return cast("Mapping[str, JSON]", dump(exclude_none=True))
