"""POST /v1/completions: texts that are continued as they stand."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedllm.openai.constraints import CONSTRAINTS, with_response_format
from embedllm.openai.parameters import LIMITS, SAMPLING, UNFOLLOWED, USAGE
from embedllm.openai.request import token_biases
from embedllm.openai.schema import BOOLEAN, NUMBER, OBJECT, STRING, STRINGS, Body, array, integer, one_of
from embedllm.server.endpoint import Endpoint, Exchange, event
from embedllm.server.errors import ApiError
from embedllm.server.openai_api.wire import DONE, stream_error
from embedllm.server.replies import Replies, begin, spelling

if TYPE_CHECKING:
    from embedllm.generation.chunk import Chunk, Statistics
    from embedllm.generation.completion import Completion
    from embedllm.model.model import Model
    from embedllm.openai.schema import Schema
    from embedllm.sampling.sampler import Picked
    from embedllm.types import JSON

_TOKENS: Schema = array(integer(0), 1)
_BODY = Body(
    name="CompletionRequest",
    required=("prompt",),
    properties={
        **SAMPLING,
        **LIMITS,
        **CONSTRAINTS,
        "prompt": one_of(STRING, {**STRINGS, "minItems": 1}, _TOKENS, array(_TOKENS, 1)),
        "best_of": integer(1),
        "echo": BOOLEAN,
        "logprobs": integer(0, 20),
        "suffix": STRING,
        "special": BOOLEAN,
    },
    unfollowed=UNFOLLOWED,
)
_APART = ("model", "prompt", "n", "stream", "stream_options", "best_of", "echo", "suffix", "logit_bias", "logprobs")


async def completions(exchange: Exchange, body: Mapping[str, Any]) -> None:
    n, echo = body.get("n", 1), body.get("echo", False)
    _check(body, n)
    prompts = _prompts(body["prompt"])
    options: Any = {name: value for name, value in with_response_format(body).items() if name not in _APART}
    if (biases := body.get("logit_bias")) is not None:
        options["logit_bias"] = token_biases(biases)
    options["logprobs"] = body.get("logprobs", 0)
    async with exchange.context.pool.use(body.get("model")) as lease:
        replies = await begin(exchange, lease, prompts, options, n=n)
        before = [_text(lease.model, prompt) if echo else "" for prompt in prompts for _ in range(n)]
        writer = _Writer(lease.name, lease.model, before, n=n, has_logprobs="logprobs" in body)
        exchange.record.response_id = writer.id
        if body.get("stream"):
            has_usage = bool(body.get("stream_options", {}).get("include_usage"))
            await exchange.stream(_events(writer, replies, has_usage=has_usage), stream_error)
        else:
            await exchange.reply(writer.whole(await replies.collect()))


def _check(body: Mapping[str, Any], n: int) -> None:
    """Raises ApiError for what there is not."""
    if body.get("best_of", n) != n:
        raise ApiError(400, f"best_of is {body['best_of']} and n is {n}; only as many replies are made as are given.",
                       param="best_of")  # fmt: skip
    if body.get("suffix"):
        raise ApiError(400, "suffix is not followed: write the model's fill-in-the-middle tokens into the prompt.",
                       param="suffix")  # fmt: skip
    if body.get("echo") and "logprobs" in body:
        raise ApiError(400, "the tokens of a prompt have no log probabilities here; leave out echo or logprobs.",
                       param="echo")  # fmt: skip
    if "stream_options" in body and not body.get("stream"):
        raise ApiError(400, "stream_options goes with stream=True.", param="stream_options")


def _prompts(prompt: Any) -> list[str | list[int]]:  # noqa: ANN401  # JSON that the schema has checked
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return prompt


def _text(model: Model, prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(list(prompt), special=True)


@dataclass(slots=True)
class _Writer:
    """Replies and pieces of replies in the shape of completions."""

    name: str
    model: Model
    before: list[str]  # of each choice, what is in front of it
    n: int
    has_logprobs: bool
    id: str = field(default_factory=lambda: f"cmpl-{os.urandom(16).hex()}")
    created: int = field(default_factory=lambda: int(time.time()))
    offsets: dict[int, int] = field(default_factory=dict)  # of each choice, characters before the next token

    def whole(self, replies: Sequence[Completion]) -> dict[str, JSON]:
        choices: list[JSON] = []
        for index, reply in enumerate(replies):
            ends = reply.finish_reason == "stop" and isinstance(reply.stopped_by, int)
            count = len(reply.tokens) - ends
            tops = reply.top_logprobs or ((),) * count
            steps = list(zip(reply.tokens[:count], reply.logprobs, tops, strict=False))
            text = self.before[index] + reply.text
            choices.append(self._choice(index, text, steps, _reason(reply.finish_reason)))
        return {**self._head(), "choices": choices, "usage": self._usage([reply.statistics for reply in replies])}

    def piece(self, index: int, chunk: Chunk, *, is_first: bool) -> dict[str, JSON] | None:
        """What a step makes; None: nothing new."""
        is_end = chunk.finish_reason == "stop" and isinstance(chunk.stopped_by, int)
        steps = []
        if chunk.token is not None and chunk.logprob is not None and not is_end:
            steps = [(chunk.token, chunk.logprob, chunk.top_logprobs)]
        text = (self.before[index] if is_first else "") + chunk.text
        if not (text or chunk.finish_reason or (steps and self.has_logprobs)):
            return None
        reason = None if chunk.finish_reason is None else _reason(chunk.finish_reason)
        return {**self._head(), "choices": [self._choice(index, text, steps, reason)]}

    def usage(self, statistics: Sequence[Statistics]) -> dict[str, JSON]:
        """The last piece."""
        return {**self._head(), "choices": [], "usage": self._usage(statistics)}

    def _head(self) -> dict[str, JSON]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.name}

    def _choice(
        self, index: int, text: str, steps: Sequence[tuple[int, float, Sequence[Picked]]], reason: str | None
    ) -> dict[str, JSON]:
        return {"index": index, "text": text, "logprobs": self._logprobs(index, steps), "finish_reason": reason}

    def _logprobs(self, index: int, steps: Sequence[tuple[int, float, Sequence[Picked]]]) -> JSON:
        if not self.has_logprobs:
            return None
        spelled = spelling(self.model)
        texts: list[JSON] = []
        offsets: list[JSON] = []
        for token, _, _ in steps:
            text, _ = spelled(token)
            texts.append(text)
            offsets.append(self.offsets.get(index, 0))
            self.offsets[index] = self.offsets.get(index, 0) + len(text)
        tops: list[JSON] = [{spelled(one.token)[0]: one.logprob for one in top} for _, _, top in steps]
        return {"tokens": texts, "token_logprobs": [step[1] for step in steps], "top_logprobs": tops,
                "text_offset": offsets}  # fmt: skip

    def _usage(self, statistics: Sequence[Statistics]) -> JSON:
        """Prompts count once, whatever n is."""
        firsts = statistics[:: self.n]
        prompt, generated = sum(one.prompt_tokens for one in firsts), sum(one.tokens for one in statistics)
        cached = sum(one.cached_tokens for one in firsts)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
                "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip


def _reason(reason: str) -> str:
    if reason == "timeout":
        raise TimeoutError("the reply was not done within its time limit; ask for fewer tokens.")
    return "stop" if reason == "stop" else "length"


async def _events(writer: _Writer, replies: Replies, *, has_usage: bool) -> AsyncGenerator[bytes, None]:
    ended: dict[int, Statistics] = {}
    indices: set[int] = set()
    async for index, chunk in replies:
        if (piece := writer.piece(index, chunk, is_first=index not in indices)) is not None:
            yield event({**piece, "usage": None} if has_usage else piece)
        indices.add(index)
        if chunk.finish_reason is not None:
            ended[index] = chunk.statistics
    if has_usage:
        yield event(writer.usage([ended[index] for index in sorted(ended)]))
    yield DONE


_LOGPROBS: Schema = {"type": ["object", "null"], "properties": {"tokens": STRINGS, "token_logprobs": array(NUMBER)}}
_CHOICE: Schema = {"type": "object", "properties": {"index": integer(0), "text": STRING, "logprobs": _LOGPROBS,
                                                    "finish_reason": {"type": ["string", "null"]}}}  # fmt: skip
COMPLETIONS = Endpoint(
    path="/v1/completions",
    handle=completions,
    summary="Continuations of texts; with \"stream\": true in pieces.",
    body=_BODY,
    response={**OBJECT, "properties": {"id": STRING, "choices": array(_CHOICE), "usage": USAGE}},
    has_events=True,
    operation="text_completion",
)  # fmt: skip
