"""OpenAI and AsyncOpenAI: clients whose chat.completions.create() is answered by a loaded model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, Unpack, overload

from embedllm.cancel import Cancel
from embedllm.errors import PackageError
from embedllm.openai.replies import ChunkWriter, Head, chat_completion
from embedllm.openai.request import ChatRequest, CreateOptions, chat_request
from embedllm.openai.types import ChatCompletion, ChatCompletionChunk, Message
from embedllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk
    from embedllm.model.model import Model
    from embedllm.text.chat_template import Message as GivenMessage
    from embedllm.text.protocols import ModelCodec

C = TypeVar("C")


class OpenAI:
    """OpenAI's client over a loaded model: `client.chat.completions.create(...)`, in this process.

    It holds nothing of its own: close the model, not the client. Calls from several threads are batched as the model's.
    """

    chat: Chat[Completions]
    """`chat.completions.create()` is the one call."""

    def __init__(self, model: Model) -> None:
        """model: loaded; it answers every request, whatever its `model` says."""
        self.chat = Chat(Completions(model))


class AsyncOpenAI:
    """OpenAI's client for asyncio: `await client.chat.completions.create(...)`."""

    chat: Chat[AsyncCompletions]
    """`chat.completions.create()` is the one call."""

    def __init__(self, model: Model) -> None:
        """model: loaded; it answers every request, whatever its `model` says."""
        self.chat = Chat(AsyncCompletions(model))


class Chat(Generic[C]):
    """What is under `client.chat`."""

    completions: C
    """Has create()."""

    def __init__(self, completions: C) -> None:
        self.completions = completions


class Stream:
    """The chunks of a reply; a context manager. Leaving it, or close(), ends the reply and frees what it used."""

    def __init__(self, chunks: Generator[ChatCompletionChunk, None, None]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[ChatCompletionChunk]:
        return self

    def __next__(self) -> ChatCompletionChunk:
        return next(self._chunks)

    def close(self) -> None:
        """Ends the reply."""
        self._chunks.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream:
    """The chunks of a reply, for `async for`; a context manager by `async with`."""

    def __init__(self, chunks: AsyncGenerator[ChatCompletionChunk, None]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        return self

    async def __anext__(self) -> ChatCompletionChunk:
        return await anext(self._chunks)

    async def close(self) -> None:
        """Ends the reply."""
        await self._chunks.aclose()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Requests:
    """What both kinds of completions have in common."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._spelling = Spelling(model.tokenizer)

    def _read(self, messages: object, options: CreateOptions, *, is_stream: bool) -> tuple[ChatRequest, Head]:
        """A request, and what all parts of its reply have in common."""
        request = chat_request(messages, options, is_stream=is_stream)
        return request, Head(model=self._model.name, spelled=self._spelling, has_logprobs=request.has_logprobs)


class Completions(_Requests):
    """What is under `client.chat.completions`."""

    @overload
    def create(
        self,
        *,
        messages: Sequence[GivenMessage | Message],
        model: str | None = None,
        stream: Literal[False] | None = None,
        **options: Unpack[CreateOptions],
    ) -> ChatCompletion: ...

    @overload
    def create(
        self,
        *,
        messages: Sequence[GivenMessage | Message],
        model: str | None = None,
        stream: Literal[True],
        **options: Unpack[CreateOptions],
    ) -> Stream: ...

    def create(
        self,
        *,
        messages: Sequence[GivenMessage | Message],
        model: str | None = None,
        stream: bool | None = None,
        **options: Unpack[CreateOptions],
    ) -> ChatCompletion | Stream:
        """The reply to a conversation, in OpenAI's shape.

        messages: each a mapping with a "role", or the message of an earlier reply.
        model: any text; it is the model that is loaded.
        stream: give the reply in chunks while it is generated.
        The options, by name. None counts as not given, and takes the model's own default:
        max_completion_tokens, max_tokens: the most tokens of the reply; the first one counts.
        n: how many replies; with stream, each chunk has the index of its own.
        temperature, top_p, seed, presence_penalty, frequency_penalty, logit_bias: as OpenAI has them; see Sampling.
        stop: texts that end the reply, and are not part of it.
        logprobs: True reports the log probability of each token. top_logprobs: how many of the most probable tokens to
        report beside it, up to 20.
        tools: JSON schemas, or Python functions. tool_choice: "auto", "none", "required" or OpenAI's object.
        parallel_tool_calls: True; False is refused, since nothing holds the model to it.
        response_format: OpenAI's object, or another one of Model.generate().
        reasoning_effort: for chat templates that have it, such as gpt-oss's; "none" turns thinking off where a
        template can (enable_thinking, thinking).
        stream_options: {"include_usage": True} ends a stream with the usage.
        timeout: seconds, after which TimeoutError is raised.
        extra_body: further options: those of Model.generate() (top_k, min_p, adapter ...), and "chat_template_kwargs"
        for its `variables`. They may be given by name as well.
        user, metadata, store, safety_identifier, prompt_cache_key, service_tier: have no effect.
        Raises TypeError for other parameters, and what Model.generate() raises.
        """
        request, head = self._read(messages, options, is_stream=stream is True)
        if stream:
            chunks = self._model.stream_n(request.messages, request.n, **request.options)
            return Stream(_chunks(chunks, ChunkWriter(head, counts_tokens=request.counts_tokens, n=request.n)))
        if request.n > 1:
            return chat_completion(head, self._model.generate_n(request.messages, request.n, **request.options))
        return chat_completion(head, [self._model.generate(request.messages, **request.options)])


class AsyncCompletions(_Requests):
    """What is under `client.chat.completions` of AsyncOpenAI."""

    @overload
    async def create(
        self,
        *,
        messages: Sequence[GivenMessage | Message],
        model: str | None = None,
        stream: Literal[False] | None = None,
        **options: Unpack[CreateOptions],
    ) -> ChatCompletion: ...

    @overload
    async def create(
        self,
        *,
        messages: Sequence[GivenMessage | Message],
        model: str | None = None,
        stream: Literal[True],
        **options: Unpack[CreateOptions],
    ) -> AsyncStream: ...

    async def create(
        self,
        *,
        messages: Sequence[GivenMessage | Message],
        model: str | None = None,
        stream: bool | None = None,
        **options: Unpack[CreateOptions],
    ) -> ChatCompletion | AsyncStream:
        """As Completions.create(), without blocking the event loop. Cancelling the task ends the reply."""
        request, head = self._read(messages, options, is_stream=stream is True)
        if stream:
            writer = ChunkWriter(head, counts_tokens=request.counts_tokens, n=request.n)
            given, runner = request, self._model.runner
            requests = await runner.make(lambda: self._model.requests(given.messages, given.n, **given.options))
            return AsyncStream(_achunks(runner.astream_all(requests, Cancel()), writer))
        if request.n > 1:
            replies = await self._model.agenerate_n(request.messages, request.n, **request.options)
            return chat_completion(head, replies)
        return chat_completion(head, [await self._model.agenerate(request.messages, **request.options)])


class Spelling:
    """Texts and bytes of tokens; the vocabulary is read when the first one is asked for."""

    def __init__(self, tokenizer: ModelCodec) -> None:
        self._tokenizer = tokenizer
        self._bytes: list[bytes] | None = None

    def __call__(self, token: int) -> tuple[str, list[int] | None]:
        """A token's text, and its bytes where the tokenizer says what they are."""
        if self._bytes is None:
            try:
                self._bytes = self._tokenizer.token_bytes() if isinstance(self._tokenizer, Tokenizer) else []
            except PackageError:  # a decoder whose bytes are not known
                self._bytes = []
        if token < len(self._bytes):
            spelled = self._bytes[token]
            return spelled.decode("utf-8", "replace"), list(spelled)
        return self._tokenizer.decode([token], special=True), None


def _chunks(
    chunks: Generator[tuple[int, Chunk], None, None], writer: ChunkWriter
) -> Generator[ChatCompletionChunk, None, None]:
    with closing(chunks):
        yield from writer.first()
        for index, chunk in chunks:
            yield from writer.push(chunk, index)


async def _achunks(
    chunks: AsyncGenerator[tuple[int, Chunk], None], writer: ChunkWriter
) -> AsyncGenerator[ChatCompletionChunk, None]:
    async with aclosing(chunks):
        for written in writer.first():
            yield written
        async for index, chunk in chunks:
            for written in writer.push(chunk, index):
                yield written
