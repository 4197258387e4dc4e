"""Replies of this library -> OpenAI's shapes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from embedllm.errors import DeviceError
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.completion import Completion
from embedllm.openai import types
from embedllm.sampling.sampler import Picked
from embedllm.tools.calls import CallDelta
from embedllm.tools.calls import ToolCall as OwnCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all parts of one reply have in common."""

    model: str  # its name
    spelled: Callable[[int], tuple[str, list[int] | None]]  # a token's text and bytes
    has_logprobs: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{os.urandom(16).hex()}")
    created: int = field(default_factory=lambda: int(time.time()))


def chat_completion(head: Head, replies: Sequence[Completion]) -> types.ChatCompletion:
    """Raises TimeoutError when the time was over: these shapes have no word for it."""
    choices = [_choice(head, index, reply) for index, reply in enumerate(replies)]
    usage = _usage([reply.statistics for reply in replies])
    return types.ChatCompletion(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)


def _choice(head: Head, index: int, reply: Completion) -> types.Choice:
    calls = [
        types.ToolCall(id=call.id, function=types.Function(name=call.name, arguments=_arguments(call)))
        for call in reply.tool_calls
    ]
    message = types.Message(
        content=None if calls and not reply.text else reply.text,
        tool_calls=calls or None,
        reasoning_content=reply.reasoning or None,
    )
    logprobs = None
    if head.has_logprobs:
        ends = reply.finish_reason == "stop" and isinstance(reply.stopped_by, int)
        count = len(reply.tokens) - ends
        tops = reply.top_logprobs or ((),) * count
        steps = zip(reply.tokens[:count], reply.logprobs, tops, strict=False)
        logprobs = types.Logprobs(content=[_token(head, *step) for step in steps])
    reason = _reason(reply.finish_reason, has_calls=bool(calls))
    return types.Choice(index=index, message=message, finish_reason=reason, logprobs=logprobs)


def _arguments(call: OwnCall) -> str:
    """What cannot be read is there as the model wrote it."""
    return call.text if call.problem else json.dumps(dict(call.arguments), ensure_ascii=False)


def _reason(reason: str, *, has_calls: bool) -> types.FinishReason:
    if reason == "timeout":
        raise TimeoutError("the reply was not done within its timeout; allow more seconds, or a smaller max_tokens.")
    if reason == "cancelled":
        raise DeviceError("the model was closed while it replied.")
    if reason == "stop":
        return "tool_calls" if has_calls else "stop"
    return "length"  # a full context, too


def _usage(statistics: Sequence[Statistics]) -> types.Usage:
    first = statistics[0]
    generated = sum(each.tokens for each in statistics)
    return types.Usage(
        prompt_tokens=first.prompt_tokens,
        completion_tokens=generated,
        total_tokens=first.prompt_tokens + generated,
        prompt_tokens_details=types.PromptTokensDetails(cached_tokens=first.cached_tokens),
    )


def _token(head: Head, token: int, logprob: float, top: Iterable[Picked]) -> types.TokenLogprob:
    text, spelled = head.spelled(token)
    tops = []
    for picked in top:
        other, other_spelled = head.spelled(picked.token)
        tops.append(types.TopLogprob(token=other, logprob=picked.logprob, bytes=other_spelled))
    return types.TokenLogprob(token=text, logprob=logprob, bytes=spelled, top_logprobs=tops)


class ChunkWriter:
    """Writes the chunks of one stream, of one or several choices."""

    def __init__(self, head: Head, *, counts_tokens: bool, n: int = 1) -> None:
        self._head = head
        self._counts_tokens = counts_tokens
        self._n = n
        self._calls: set[tuple[int, int]] = set()  # choices and their calls that were begun
        self._ended: list[Statistics] = []  # of the choices that are whole

    def first(self) -> Iterator[types.ChatCompletionChunk]:
        """The chunks before anything is generated, one a choice."""
        return (self._chunk(index, types.Delta(role="assistant", content="")) for index in range(self._n))

    def push(self, chunk: Chunk, index: int = 0) -> Iterator[types.ChatCompletionChunk]:
        """The chunks that a step of a choice makes; those without news are left out. The last one has the usage."""
        problems = {call.id: call for call in chunk.tool_calls if call.problem}
        calls = [self._call(index, delta, problems.get(delta.id)) for delta in chunk.call_deltas]
        ends = chunk.finish_reason is not None
        logprobs = None
        if self._head.has_logprobs and chunk.token is not None and chunk.logprob is not None:
            is_end = chunk.finish_reason == "stop" and isinstance(chunk.stopped_by, int)
            steps = [] if is_end else [_token(self._head, chunk.token, chunk.logprob, chunk.top_logprobs)]
            logprobs = types.Logprobs(content=steps) if steps else None
        if chunk.text or chunk.reasoning or calls or logprobs:
            delta = types.Delta(
                content=chunk.text or None, reasoning_content=chunk.reasoning or None, tool_calls=calls or None
            )
            yield self._chunk(index, delta, logprobs=logprobs)
        if ends:
            has_calls = any(choice == index for choice, _ in self._calls)
            yield self._chunk(index, types.Delta(), _reason(chunk.finish_reason or "stop", has_calls=has_calls))
            self._ended.append(chunk.statistics)
        if ends and self._counts_tokens and len(self._ended) == self._n:
            head, usage = self._head, _usage(self._ended)
            yield types.ChatCompletionChunk(id=head.id, created=head.created, model=head.model, choices=[], usage=usage)

    def _call(self, index: int, delta: CallDelta, problem: OwnCall | None) -> types.ToolCallDelta:
        is_first = (index, delta.index) not in self._calls
        self._calls.add((index, delta.index))
        arguments = problem.text if problem and is_first else delta.arguments
        function = types.Function(name=delta.name if is_first else None, arguments=arguments)
        if not is_first:
            return types.ToolCallDelta(index=delta.index, function=function)
        return types.ToolCallDelta(index=delta.index, id=delta.id, type="function", function=function)

    def _chunk(
        self,
        index: int,
        delta: types.Delta,
        reason: types.FinishReason | None = None,
        logprobs: types.Logprobs | None = None,
    ) -> types.ChatCompletionChunk:
        head = self._head
        choice = types.ChunkChoice(index=index, delta=delta, finish_reason=reason, logprobs=logprobs)
        return types.ChatCompletionChunk(id=head.id, created=head.created, model=head.model, choices=[choice])
