"""One generation: which token next and when to stop, as a rule that does no I/O.

`Generation.accept(logits)` decides; loop.py fetches logits for it. So the same rule serves threads, asyncio and the
browser. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from embedllm.errors import DeviceError
from embedllm.generation.chunk import Chunk, Statistics, parted
from embedllm.sampling.sampler import Sampler, check_logits, top_logprobs
from embedllm.text.stream import StopStrings, TextStream
from embedllm.tools.calls import ReplyReader
from embedllm.types import Logits


class _Clock:
    """No generator, which takes three times as long, twice a token."""

    __slots__ = ("_generation", "_started_s")

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __enter__(self) -> None:
        self._started_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._generation._spent_s += time.perf_counter() - self._started_s


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
    device: str = ""  # what gives the logits, for errors
    drafted_tokens: int = field(default=0, init=False)  # fed for verification; incremented by the decode loop
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
        Raises DeviceError for logits of a broken model: not finite, or all equal.
        """
        began_s = time.perf_counter()
        sampler, stops, reason, by = self.sampler, self.stops, None, None
        try:
            top = tuple(top_logprobs(logits, self.top_count)) if self.top_count else ()
            picked = sampler.pick(logits)
            check_logits(logits, picked.logprob)
        except DeviceError as error:
            raise DeviceError(f"on '{self.device}', {error}") from error
        token = picked.token
        sampler.note(token)
        is_stop, is_whole = token in self.stop_tokens, sampler.is_done
        text = "" if is_stop else stops.push(self.text.push(token))
        if is_stop or is_whole or stops.matched is not None or self.statistics.tokens + 1 >= self.limit:
            if stops.matched is None:
                text += self._rest()
            reason, by = self._finish(is_stop, is_whole, token)
        self._accepted_tokens += token == proposed
        self._spent_s += time.perf_counter() - began_s
        self._count(1)
        chunk = Chunk(text=text, token=token, logprob=picked.logprob, top_logprobs=top, finish_reason=reason,
                      stopped_by=by, statistics=self.statistics)  # fmt: skip
        return chunk if self.reader is None else parted(chunk, self.reader)

    def clocked(self) -> _Clock:
        """Counts the time of the block, which is a feed or what proposes draft tokens."""
        return _Clock(self)

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
        return chunk if self.reader is None else parted(chunk, self.reader)

    def _finish(self, is_stop: bool, is_whole: bool, token: int) -> tuple[str, str | int | None]:
        """Why the reply is over, and what of."""
        if self.stops.matched is not None:
            return "stop", self.stops.matched
        if is_stop:
            return "stop", token
        return ("stop" if is_whole else self.limit_reason), None

    def _rest(self) -> str:
        """What was held back; a stop string may still be found in it."""
        return self.stops.push(self.text.flush()) + self.stops.flush()
