"""The decoder: which token next and when to stop, as a rule that does no I/O.

`Generation.accept(logits)` decides; loop.py fetches logits for it. So the same rule serves threads, asyncio and the
browser. Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from embedllm.sampling.sampler import Picked, Sampler, top_logprobs
from embedllm.text.tokenizer import StopStrings, TextStream
from embedllm.tools.calls import ReplyReader, ToolCall
from embedllm.types import Logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a generation has cost so far. Times are seconds of a monotonic clock, without any pause between two chunks.

    prefill_s: feeding the prompt and choosing the first token. decode_s: feeding and choosing each later one. Neither
    has what a consumer does with a chunk, nor the template, the tokenizer and the making of a KV cache before the
    first feed; with asyncio they have the time until the event loop came back to a feed that was done.
    """

    prompt_tokens: int
    cached_tokens: int  # of the prompt's: held already from an earlier call, not computed again
    tokens: int = 0  # generated, the stop token among them
    prefill_s: float = 0.0
    decode_s: float = 0.0
    drafted_tokens: int = 0  # proposed by a lookup or a draft model, and fed
    accepted_tokens: int = 0  # of these: what the rule chose, too
    dropped_tokens: int = 0  # of a conversation: what the model sees no more, to make room (when_full)
    queued_s: float = 0.0  # before the prompt: waited until other replies had ended

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One step of a stream."""

    text: str  # what is certain now; may be empty while a character or a possible stop string is incomplete
    token: int | None  # None when the stream ends without one: cancelled
    logprob: float | None  # natural log of the token's probability in the model's own distribution
    top_logprobs: tuple[Picked, ...] = ()  # the most probable tokens of this step, when asked for
    finish_reason: str | None = None  # in the last chunk: "stop", "length", "context" or "cancelled"
    stopped_by: str | int | None = None  # what "stop" came from: a stop string, a stop token, None = the constraint
    statistics: Statistics
    reasoning: str = ""  # what the model thinks, apart from the answer
    tool_calls: tuple[ToolCall, ...] = ()  # that are whole with this step


class Cancel:
    """A switch that ends generations from any thread, in the middle of a prompt too. It cannot be switched back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may cancel in the thread that has it
        self._cancelled = False
        self._interrupts: list[Callable[[bool], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """End every generation that was given this switch; it gives its text so far and "cancelled"."""
        with self._lock:
            self._cancelled = True
            for interrupt in self._interrupts:
                interrupt(True)

    @contextmanager
    def watching(self, interrupt: Callable[[bool], None]) -> Iterator[None]:
        """Within the block, cancel() calls interrupt(True); at its end comes interrupt(False)."""
        with self._lock:
            self._interrupts.append(interrupt)
            if self._cancelled:
                interrupt(True)
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
                interrupt(False)

    @contextmanager
    def passed_on(self) -> Iterator[Cancel]:
        """Within the block, this one switches another, too, which can be switched by itself."""
        other = Cancel()

        def pass_on(stop: bool) -> None:
            if stop:
                other.cancel()

        with self.watching(pass_on):
            yield other


@dataclass(slots=True, kw_only=True)
class Generation:
    """The rule of one generation: sampler, text, stops and limit, and how far it has come."""

    sampler: Sampler
    text: TextStream
    stops: StopStrings
    stop_tokens: Collection[int]
    limit: int  # tokens to generate at most
    limit_reason: str  # what reaching it is called: "length" or "context"
    top_count: int  # of the most probable tokens to report
    statistics: Statistics
    reader: ReplyReader | None = None  # where a reply is more than text
    drafted_tokens: int = field(default=0, init=False)  # fed on suspicion; counted by who feeds
    dropped_tokens: int = 0  # before it, and since; counted by who drops them
    _accepted_tokens: int = field(default=0, init=False)
    _spent_s: float = field(default=0.0, init=False)  # seconds that are not in the statistics yet

    @property
    def spent_s(self) -> float:
        """Seconds so far, of the prompt and of all that was decided."""
        return self.statistics.prefill_s + self.statistics.decode_s + self._spent_s

    def accept(self, logits: Logits, proposed: int | None = None) -> Chunk:
        """Decides one step; the last one has a finish_reason, and must not be followed by another.

        proposed: the token that was fed already in the hope that it would be chosen; it has no part in the choice.
        """
        with self.clocked():
            top = tuple(top_logprobs(logits, self.top_count)) if self.top_count else ()
            picked = self.sampler.pick(logits)
            self.sampler.note(picked.token)
            is_stop = picked.token in self.stop_tokens
            is_whole = self.sampler.is_done
            text = "" if is_stop else self.stops.push(self.text.push(picked.token))
            is_last = is_stop or is_whole or self.stops.matched is not None or self.statistics.tokens + 1 >= self.limit
            if is_last and self.stops.matched is None:
                text += self._rest()
        self._accepted_tokens += picked.token == proposed
        self._count(1)
        reason, by = self._finish(is_stop, is_whole, picked.token, is_last)
        chunk = Chunk(text=text, token=picked.token, logprob=picked.logprob, top_logprobs=top, finish_reason=reason,
                      stopped_by=by, statistics=self.statistics)  # fmt: skip
        return chunk if self.reader is None else _parted(chunk, self.reader)

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Counts the time of the block, which is one feed or one decision."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s += time.perf_counter() - started

    def _count(self, tokens: int) -> None:
        """Puts into the statistics what came since the last time."""
        so_far, spent_s = self.statistics, self._spent_s
        self._spent_s = 0.0
        is_decode = so_far.tokens > 0
        # not by replace(), which takes three times as long, once a token
        self.statistics = Statistics(
            prompt_tokens=so_far.prompt_tokens,
            cached_tokens=so_far.cached_tokens,
            tokens=so_far.tokens + tokens,
            prefill_s=so_far.prefill_s if is_decode else so_far.prefill_s + spent_s,
            decode_s=so_far.decode_s + spent_s if is_decode else so_far.decode_s,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            dropped_tokens=self.dropped_tokens,
            queued_s=so_far.queued_s,
        )

    def cancelled(self) -> Chunk:
        """The last chunk of a generation that was ended from outside."""
        text = self._rest()
        self._count(0)
        chunk = Chunk(text=text, token=None, logprob=None, finish_reason="cancelled", statistics=self.statistics)
        return chunk if self.reader is None else _parted(chunk, self.reader)

    def _finish(self, is_stop: bool, is_whole: bool, token: int, is_last: bool) -> tuple[str | None, str | int | None]:
        if self.stops.matched is not None:
            return "stop", self.stops.matched
        if is_stop:
            return "stop", token
        if is_whole:
            return "stop", None
        return (self.limit_reason if is_last else None), None

    def _rest(self) -> str:
        """What was held back; a stop string may still be found in it."""
        held = self.stops.push(self.text.flush())
        return held + self.stops.flush()


def _parted(chunk: Chunk, reader: ReplyReader) -> Chunk:
    """The chunk with its text as what it is."""
    parts = reader.push(chunk.text, chunk.finish_reason)
    if parts.text == chunk.text and not parts.reasoning and not parts.tool_calls:
        return chunk
    return replace(chunk, text=parts.text, reasoning=parts.reasoning, tool_calls=parts.tool_calls)
