"""A chat that remembers its history, and keeps the KV cache of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from embedllm.chat import Message, Tool
from embedllm.decode import Cancel, Chunk
from embedllm.model import Completion, Model, collect
from embedllm.runner import AsyncStream, HeldSequence, Request
from embedllm.sampling import Sampling

if TYPE_CHECKING:
    from embedllm.chat import JSON


class Conversation:
    """Messages and the KV cache of what they became; made by Model.conversation().

    messages: the history, a list that may be changed between turns: what a changed history no longer shares with the
    cache is computed again. One turn at a time.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
    ) -> None:
        self.model = model
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._tools = tools
        self._variables = variables
        self._sequence: HeldSequence | None = None

    def say(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        cancel: Cancel | None = None,
    ) -> Completion:
        """Adds the user's message and the model's reply to the history; gives the reply.

        text: what the user says, or a whole message (a tool's result, say).
        When it fails (ContextFull, TemplateError, DeviceError) the history stays as it was.
        """
        return collect(self.stream(text, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                                   logprobs=logprobs, cancel=cancel))  # fmt: skip

    def stream(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        cancel: Cancel | None = None,
    ) -> Generator[Chunk, None, None]:
        """As say(), token by token.

        Of a reply that is cancelled or left early, the history gets what there was; without any text, nothing.
        """
        said, request = self._request(text, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                                      logprobs=logprobs)  # fmt: skip
        return self._stream(said, request, cancel or Cancel())

    async def asay(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        cancel: Cancel | None = None,
    ) -> Completion:
        """As say(), without blocking the event loop."""
        chunks = self.astream(text, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                              logprobs=logprobs, cancel=cancel)  # fmt: skip
        return collect([chunk async for chunk in chunks])

    def astream(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        cancel: Cancel | None = None,
    ) -> AsyncStream:
        """As stream(), for `async for`."""
        said, request = self._request(text, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                                      logprobs=logprobs)  # fmt: skip
        sequence = self._held(request)
        return self.model.runner.astream(request, cancel or Cancel(), sequence, noting=self._turn(said))

    def _request(
        self,
        text: str | Message,
        sampling: Sampling | None,
        *,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
        stop_tokens: Sequence[int] | None,
        logprobs: int,
    ) -> tuple[Message, Request]:
        """The message that is said, and what the model shall run."""
        said: Message = {"role": "user", "content": text} if isinstance(text, str) else text
        request = self.model.request([*self.messages, said], sampling, max_tokens=max_tokens, stop=stop,
                                     stop_tokens=stop_tokens, logprobs=logprobs, tools=self._tools,
                                     variables=self._variables)  # fmt: skip
        return said, request

    def _held(self, request: Request) -> HeldSequence:
        if self._sequence is None:
            self._sequence = self.model.runner.new_sequence(len(request.prompt))
        return self._sequence

    def _stream(self, said: Message, request: Request, cancel: Cancel) -> Generator[Chunk, None, None]:
        with self._turn(said) as note:
            for chunk in self.model.runner.stream(request, cancel, self._held(request)):
                note(chunk)
                yield chunk

    @contextmanager
    def _turn(self, said: Message) -> Iterator[Callable[[Chunk], None]]:
        """Within the block, chunks are told; at its end what was said goes into the history, unless it failed."""
        reply = ""
        is_said = False

        def note(chunk: Chunk) -> None:
            nonlocal reply, is_said
            reply += chunk.text
            is_said = bool(reply) or chunk.finish_reason not in (None, "cancelled")

        try:
            yield note
        except Exception:
            is_said = False  # the turn can be said again
            raise
        finally:
            if is_said:
                self.messages += [said, {"role": "assistant", "content": reply}]

    def close(self) -> None:
        """Frees the KV cache; the history stays, and the next turn computes it again."""
        if self._sequence is not None:
            self._sequence.session.close()
            self._sequence = None

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
