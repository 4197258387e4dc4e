"""What a stream yields: pieces of text with their tokens, and the statistics of a reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from embedllm.sampling.sampler import Picked
from embedllm.tools.calls import CallDelta, ReplyReader, ToolCall

T = TypeVar("T")


def _quick_to_make(cls: type[T]) -> type[T]:
    """The same frozen dataclass, whose __init__ sets its slots themselves; two are made for each token.

    That of dataclasses calls object.__setattr__ by the name of each field, which takes three times as long.
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # it is a dataclass
    setters = {f"set_{name}": cls.__dict__[name].__set__ for name in names}
    body = "; ".join(f"set_{name}(self, {name})" for name in names)
    namespace: dict[str, Callable[..., None]] = {}
    exec(f"def __init__(self, *, {', '.join(names)}): {body}", setters, namespace)
    init: Any = namespace["__init__"]
    init.__kwdefaults__, init.__annotations__ = cls.__init__.__kwdefaults__, cls.__init__.__annotations__
    cls.__init__ = init
    return cls


@_quick_to_make
@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a generation has cost so far. Times are seconds of a monotonic clock, without any pause between two chunks.

    prefill_s: feeding the prompt and choosing the first token. decode_s: feeding and choosing each later one. Neither
    has what a consumer does with a chunk, nor the template, the tokenizer and the making of a KV cache before the
    first feed; with asyncio they have the time until the event loop came back to a feed that was done.
    """

    prompt_tokens: int
    """Tokens of the prompt."""
    cached_tokens: int
    """Of the prompt's: held already from an earlier call, not computed again."""
    tokens: int = 0
    """Generated, the stop token among them."""
    prefill_s: float = 0.0
    """Feeding the prompt and choosing the first token."""
    decode_s: float = 0.0
    """Feeding and choosing each later token."""
    drafted_tokens: int = 0
    """Proposed by a lookup or a draft model, and fed."""
    accepted_tokens: int = 0
    """Of the drafted ones: what the rule chose, too."""
    dropped_tokens: int = 0
    """Of a conversation: what the model sees no more, to make room (when_full)."""
    queued_s: float = 0.0
    """Waited before the prompt, until other replies had ended."""

    @property
    def acceptance(self) -> float:
        """The share of the drafted tokens that was accepted; 0 when there was none."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def prefill_tokens_s(self) -> float:
        """Prompt tokens computed per second."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_s(self) -> float:
        """Tokens generated per second after the first one, which the prefill gave."""
        return (self.tokens - 1) / self.decode_s if self.decode_s and self.tokens > 1 else 0.0


@_quick_to_make
@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One step of a stream."""

    text: str
    """What is certain now; may be empty while a character or a possible stop string is incomplete."""
    token: int | None
    """The token of this step; None when the stream ends without one: cancelled."""
    logprob: float | None
    """Natural log of the token's probability in the model's own distribution."""
    top_logprobs: tuple[Picked, ...] = ()
    """The most probable tokens of this step, when asked for."""
    finish_reason: str | None = None
    """In the last chunk: "stop", "length", "context", "cancelled", "timeout"."""
    stopped_by: str | int | None = None
    """What "stop" came from: a stop string, a stop token, None = the constraint."""
    statistics: Statistics
    """What the generation has cost so far."""
    reasoning: str = ""
    """What the model thinks, apart from the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that are whole with this step."""
    call_deltas: tuple[CallDelta, ...] = ()
    """What has become certain of calls, as they are written."""


def parted(chunk: Chunk, reader: ReplyReader) -> Chunk:
    """The chunk with its text as what it is."""
    parts = reader.push(chunk.text, chunk.finish_reason)
    if parts.text == chunk.text and not (parts.reasoning or parts.tool_calls or parts.call_deltas):
        return chunk
    return replace(chunk, text=parts.text, reasoning=parts.reasoning, tool_calls=parts.tool_calls,
                   call_deltas=parts.call_deltas)  # fmt: skip
