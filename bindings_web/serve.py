"""Python's half of the JavaScript API with the engine "python": answers its worker's requests with a Model.

Requests and errors are JSON texts, chunks plain values: objects that live in both languages would have to be freed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from embedllm.backends.browser.engine import own_id, page_id
from embedllm.backends.browser.javascript import call, whole_numbers
from embedllm.cancel import Cancel
from embedllm.errors import ContextFull, DeviceUnavailable, EmbedError
from embedllm.generation.chunk import Chunk
from embedllm.web.constraint import MakeMatcher, WebConstraint
from embedllm.web.loading import aload

if TYPE_CHECKING:
    from embedllm.backends.browser.engine import JsSession, WebSession
    from embedllm.generation.async_stream import AsyncStream
    from embedllm.generation.request import Request
    from embedllm.kv_cache.sequence import CachedSequence
    from embedllm.model.model import Model
    from embedllm.text.chat_template import JSON, Message
    from embedllm.text.prompt import Prompt

_NAMES = {"ValueError": "RangeError"}  # a caller's slip, here and there
_EXPECTED = (EmbedError, OSError, ValueError, TypeError)


class Tell(Protocol):
    """A function of JavaScript's that takes a chunk value by value: bindings_web/src/worker/engine_python.js."""

    def __call__(
        self,
        text: str,
        token: int | None,
        logprob: float | None,
        top_logprobs: str | None,
        finish_reason: str | None,
        stopped_by: str | int | None,
        prompt_tokens: int,
        cached_tokens: int,
        tokens: int,
        prefill_s: float,
        decode_s: float,
        /,
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRequest:
    """A request for a reply: the type `Reply` of bindings_web/src/worker/protocol.js."""

    prompt: Prompt
    sampling: Mapping[str, JSON]
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] | None = None
    logprobs: int = 0
    special: bool = False
    tools: Sequence[Mapping[str, JSON]] | None = None
    documents: Sequence[Mapping[str, JSON]] | None = None
    variables: Mapping[str, JSON] | None = None
    continue_final_message: bool = False
    response_format: Mapping[str, JSON] | None = None  # JavaScript compiles it
    conversation: int | None = None
    images: Sequence[Mapping[str, JSON]] = ()  # of the prompt, in its order: size, and sha256 of the file


async def open_model(url: str, parse_special: bool) -> Server | str:
    """The model at an address, which the worker says more about; JSON of the error if it fails."""
    try:
        return Server(await aload(url, parse_special=parse_special))
    except _EXPECTED as error:
        return error_text(error)


class Server:
    """Answers for one model, a request at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._sequences: dict[int, CachedSequence] = {}
        self._cancel = Cancel()
        if model.package.decoder.vision is not None:
            from embedllm.web.images import encode_in_page  # loaded for models that see only

            encode_in_page(model)
        self.name = model.name
        self.context = model.context
        self.can_chat = model.can_chat

    async def reply(self, request: str, tell: Tell, make_matcher: MakeMatcher | None) -> str:
        """Tells the chunks of a reply; JSON of the error if it fails, else empty.

        make_matcher: makes what holds the reply to its response_format.
        """
        self._cancel = Cancel()
        try:
            async for chunk in self._stream(read_request(request), self._cancel, make_matcher):
                _tell(chunk, tell)
        except _EXPECTED as error:
            return error_text(error)
        return ""

    def cancel(self) -> None:
        """Ends the reply that runs, at its next step."""
        self._cancel.cancel()

    def session(self, conversation: int) -> JsSession | None:
        """JavaScript's session of a conversation, where there is one: what moves KV needs no way through Python."""
        sequence = self._sequences.get(conversation)
        return None if sequence is None else cast("WebSession", sequence.session).inner

    def tokens(self, conversation: int) -> str:
        """JSON of the tokens that the conversation's session holds."""
        return json.dumps([page_id(token) for token in self._sequences[conversation].tokens])

    def hold(self, conversation: int, tokens: str) -> JsSession:
        """A new session for a conversation; JavaScript puts the KV of these tokens, in JSON, into it."""
        token_ids = [own_id(token) for token in json.loads(tokens)]
        sequence = self._model.runner.sequences.new(len(token_ids))
        session = cast("WebSession", sequence.session)
        inner = session.inner
        sequence.tokens, session.position = token_ids, len(token_ids)
        self._sequences[conversation] = sequence
        return inner

    def forget(self, conversation: int) -> None:
        """Frees the KV cache of a conversation."""
        sequence = self._sequences.pop(conversation, None)
        if sequence is not None:
            self._model.runner.sequences.drop(sequence)

    def close(self) -> None:
        self._sequences.clear()
        self._model.close()

    def _stream(self, reply_request: ReplyRequest, cancel: Cancel, make_matcher: MakeMatcher | None) -> AsyncStream:
        model, request = self._model, self._request(reply_request)
        if make_matcher is not None:
            matcher = call(make_matcher, whole_numbers(sorted(request.stop_tokens)))
            request = replace(request, constraint=WebConstraint(matcher))
        sequence = None
        if reply_request.conversation is not None:
            sequence = self._sequences.get(reply_request.conversation)
            if sequence is None:
                sequence = model.runner.sequences.new(len(request.prompt))
                self._sequences[reply_request.conversation] = sequence
        return model.runner.astream(request, cancel, sequence)

    def _request(self, reply_request: ReplyRequest) -> Request:
        model = self._model
        if reply_request.images:
            from embedllm.web.images import opened_images, with_page_ids  # loaded for prompts with images only

            prompt = opened_images(cast("Sequence[Message]", reply_request.prompt), reply_request.images)
            request = with_page_ids(self._request(replace(reply_request, prompt=prompt, images=())))
            model.runner.check(request)  # which lets its images be fed
            return request
        request = model.request(
            reply_request.prompt,
            replace(model.sampling, **_sampling(reply_request.sampling)),  # type: ignore[arg-type]  # Sampling checks them
            max_tokens=reply_request.max_tokens,
            stop=reply_request.stop,
            stop_tokens=reply_request.stop_tokens,
            logprobs=reply_request.logprobs,
            tools=reply_request.tools,
            variables=reply_request.variables or None,
            documents=reply_request.documents,
            continue_final_message=reply_request.continue_final_message,
            special=reply_request.special,
        )
        return replace(request, reader=None, mark_tokens=frozenset())  # the page is given the reply as it is written


def read_request(text: str) -> ReplyRequest:
    """The request in a JSON text. Raises TypeError for a name that ReplyRequest has not."""
    return ReplyRequest(**json.loads(text))


def error_text(error: Exception) -> str:
    """JSON of an error: the type `Posted` of bindings_web/src/worker/protocol.js."""
    name = type(error).__name__
    fields: dict[str, object] = {"name": _NAMES.get(name, name), "message": str(error) or name}
    if isinstance(error, ContextFull):
        fields |= {"tokens": error.tokens, "limit": error.limit}
    if isinstance(error, DeviceUnavailable):
        fields["tried"] = error.tried
    return json.dumps(fields)


def _sampling(sampling: Mapping[str, JSON]) -> dict[str, JSON | Mapping[int, float]]:
    """Options with token ids and infinities as Python has them; JSON's names are texts."""
    values: dict[str, JSON | Mapping[int, float]] = dict(sampling)
    if "logit_bias" in sampling:
        biases = cast("Mapping[str, float | str]", sampling["logit_bias"])
        values["logit_bias"] = {int(token): float(bias) for token, bias in biases.items()}
    return values


def _tell(chunk: Chunk, tell: Tell) -> None:
    top = [{"token": picked.token, "logprob": picked.logprob} for picked in chunk.top_logprobs]
    costs = chunk.statistics
    tell(chunk.text, chunk.token, chunk.logprob, json.dumps(top) if top else None, chunk.finish_reason,
         chunk.stopped_by, costs.prompt_tokens, costs.cached_tokens, costs.tokens, costs.prefill_s,
         costs.decode_s)  # fmt: skip
