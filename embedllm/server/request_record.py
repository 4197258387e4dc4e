"""RequestRecord: what a request to a model came to, noted while it is answered, for traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk
    from embedllm.generation.completion import Completion
    from embedllm.server.errors import ApiError
    from embedllm.text.prompt import Prompt


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """Of a request that a model replies to several times (tools of MCP servers) the tokens are those of all replies."""

    status: int = 0  # HTTP's; 0: nothing was answered
    error: ApiError | None = None  # also one in the middle of a stream
    is_gone: bool = False  # the client went away
    model: str | None = None  # that answered
    response_id: str | None = None
    input_tokens: int | None = None  # those from the cache among them
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reasons: list[str] = field(default_factory=list)  # of each choice
    queued_s: float | None = None  # of the first reply
    first_chunk_s: float | None = None  # since the request came
    prompts: Sequence[Prompt] = ()  # with their content: only where traces have it
    replies: Sequence[Completion] = ()

    def add_tokens(self, prompt_tokens: int, cached: int = 0, generated: int | None = None) -> None:
        """Counts the tokens of an input, and of what was generated for it."""
        self.input_tokens = (self.input_tokens or 0) + prompt_tokens
        self.cached_tokens = (self.cached_tokens or 0) + cached
        if generated is not None:
            self.output_tokens = (self.output_tokens or 0) + generated

    def add_replies(self, last: Mapping[int, Chunk], n: int, calling: set[int]) -> None:
        """Notes replies that ended, or were ended.

        last: the last chunk of each; n: replies to a prompt, which counts once; calling: those that call tools.
        """
        for place, chunk in sorted(last.items()):
            statistics = chunk.statistics
            is_first = place % n == 0
            self.add_tokens(statistics.prompt_tokens * is_first, statistics.cached_tokens * is_first, statistics.tokens)
        self.finish_reasons = [_reason(chunk, place in calling) for place, chunk in sorted(last.items())]


def _reason(chunk: Chunk, has_calls: bool) -> str:
    """In the words of the semantic conventions."""
    if chunk.finish_reason == "stop":
        return "tool_call" if has_calls else "stop"
    return "length" if chunk.finish_reason in ("length", "context") else "error"


class RequestTrace(Protocol):
    """The trace of one request, open until the context manager ends."""

    def begin(self, body: Mapping[str, Any]) -> None:
        """Once the body was read."""
        ...


class Tracing(Protocol):
    """Where traces go; embedllm/server/tracing.py sends them by OpenTelemetry."""

    @property
    def has_content(self) -> bool:
        """Whether records shall have prompts and replies."""
        ...

    def request(
        self, operation: str, method: str, route: str, headers: Mapping[str, str], record: RequestRecord
    ) -> AbstractContextManager[RequestTrace]:
        """A request that has come. operation: of the semantic conventions; route: the path of the endpoint."""
        ...

    def tool(self, name: str, call_id: str) -> AbstractContextManager[None]:
        """A tool that runs within a request."""
        ...
