"""Runs a beam search on sequences: one for each beam, which all share what the prompt and their beginnings computed."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

from embedllm.backends.base import Interrupted, MovesState
from embedllm.cancel import Cancel
from embedllm.errors import DeviceError
from embedllm.files.native_calls import native_call
from embedllm.generation.beam_search import Beam, BeamSearch
from embedllm.generation.chunk import Statistics
from embedllm.generation.loop import Feed
from embedllm.kv_cache.sequence import CachedSequence
from embedllm.kv_cache.sequence_pool import SequencePool
from embedllm.kv_cache.transfer import exported
from embedllm.package.lora.adapter import Adapter
from embedllm.types import Logits

# options of a reply that single tokens are chosen or cut by, or that cannot go back, as a beam does
BEAMLESS = frozenset({"min_tokens", "stop", "logprobs", "speculate", "response_format", "tool_choice"})


BeamStep: TypeAlias = "Feed | list[Feed] | tuple[Reply, ...]"  # feeds, and at the end the replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One of the replies that were found."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str  # "stop", "length", "context", "cancelled" or "timeout"
    stopped_by: int | None  # the stop token
    statistics: Statistics  # its own tokens; the times of the whole search

    @property
    def text_tokens(self) -> tuple[int, ...]:
        """Those that are text: without the stop token."""
        return self.tokens if self.stopped_by is None else self.tokens[:-1]


class BeamRunner:
    """One search, with the sequences that it takes while it runs."""

    def __init__(
        self,
        search: BeamSearch,
        sequences: SequencePool,
        prompt: Sequence[int],
        *,
        adapter: Adapter | None = None,
    ) -> None:
        """adapter: of every beam."""
        self._search = search
        self._sequences = sequences
        self._prompt = list(prompt)
        self._adapter = adapter
        self._resources = ExitStack()
        self._free: list[CachedSequence] = []
        self._cached_tokens = 0
        self._queued_s = 0.0
        self._prefill_s = 0.0
        self._decode_s = 0.0

    def steps(self, limit_reason: str, cancel: Cancel, *, queued_s: float = 0.0) -> Generator[BeamStep, Any, None]:
        """Asks for feeds, and at the end gives the replies, best first.

        Of a search that was cancelled: what was found, and what it was following. queued_s: waited before.
        """
        self._queued_s = queued_s
        with self._resources:
            try:
                yield from self._run_search(cancel)
                is_whole = True
            except Interrupted:
                is_whole = False
        replies = [self._reply(hypothesis.beam, limit_reason) for hypothesis in self._search.finished]
        yield tuple(replies if is_whole else replies + self.ended(cancel))

    def run_directly(self, limit_reason: str, cancel: Cancel) -> list[Reply]:
        """As steps(), fed by the caller."""
        steps = self.steps(limit_reason, cancel)
        step = next(steps)
        while isinstance(step, (Feed, list)):
            feeds = step if isinstance(step, list) else [step]
            try:
                with native_call():
                    rows = [feed() for feed in feeds]
            except Exception as error:  # noqa: BLE001  # raises it again, or ends
                step = steps.throw(error)
            else:
                step = steps.send(rows if isinstance(step, list) else rows[0])
        return list(step)

    def ended(self, cancel: Cancel) -> list[Reply]:
        """What it is following, which was cancelled, or ran out of time."""
        reason = "cancelled" if cancel.cancelled else "timeout"
        return [self._reply(beam, reason) for beam in self._search.running]

    def _run_search(self, cancel: Cancel) -> Generator[BeamStep, Any, None]:
        """Searches to the end; all beams take a step at once. Raises Interrupted."""
        started = time.perf_counter()
        used = [self._take(cancel, is_new=False)]
        rows = [(yield from self._prefill(used[0]))[-1]]
        self._prefill_s = time.perf_counter() - started
        while True:
            try:
                self._search.accept(rows)
            except DeviceError as error:
                raise DeviceError(f"on '{self._sequences.engine.device.name}', {error}") from error
            if self._search.is_done:
                return
            if cancel.cancelled:
                raise Interrupted
            used = yield from self._place(used, cancel)
            feeds = [Feed(each, beam.tokens[-1:]) for each, beam in zip(used, self._search.running, strict=True)]
            rows = [last[-1] for last in (yield feeds)]
            self._decode_s = time.perf_counter() - started - self._prefill_s

    def _reply(self, beam: Beam, otherwise: str) -> Reply:
        is_stop = bool(beam.tokens) and beam.tokens[-1] in self._search.stop_tokens
        statistics = Statistics(
            prompt_tokens=len(self._prompt),
            cached_tokens=self._cached_tokens,
            tokens=len(beam.tokens),
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            queued_s=self._queued_s,
        )
        return Reply(
            tokens=beam.tokens,
            logprobs=beam.logprobs,
            finish_reason="stop" if is_stop else otherwise,
            stopped_by=beam.tokens[-1] if is_stop else None,
            statistics=statistics,
        )

    def _prefill(self, sequence: CachedSequence) -> Generator[Feed, Any, Sequence[Logits]]:
        self._cached_tokens = self._sequences.begin(sequence, self._prompt, self._adapter)
        return (yield from self._feed(sequence, self._prompt, self._cached_tokens))

    def _feed(
        self, sequence: CachedSequence, tokens: Sequence[int], start: int
    ) -> Generator[Feed, Any, Sequence[Logits]]:
        """Those from a place on, in pieces, which are all that a session without a scheduler takes at once."""
        rows: Sequence[Logits] = ()
        for piece in sequence.pieces(tokens, start, self._sequences.engine.chunk):
            rows = yield Feed(sequence, piece, is_prompt=True)
        return rows

    def _place(self, used: Sequence[CachedSequence], cancel: Cancel) -> Generator[BeamStep, Any, list[CachedSequence]]:
        """For each beam a sequence that holds all of it but the last token.

        The first beam that prolongs another takes its sequence over; the others get copies, made while it still stands
        where it stood.
        """
        beams = self._search.running
        heirs: dict[int, int] = {}
        for place, beam in enumerate(beams):
            heirs.setdefault(beam.parent, place)
        self._free += [sequence for place, sequence in enumerate(used) if place not in heirs]
        placed: list[CachedSequence] = []
        for place, beam in enumerate(beams):
            parent = used[beam.parent]
            placed.append(parent if heirs[beam.parent] == place else (yield from self._copy(parent, beam, cancel)))
        return placed

    def _copy(self, parent: CachedSequence, beam: Beam, cancel: Cancel) -> Generator[BeamStep, Any, CachedSequence]:
        copy = self._free.pop() if self._free else self._take(cancel, is_new=True)
        if copy.adapter is not self._adapter:  # a new one
            copy.adapt(self._adapter)
        tokens = [*self._prompt, *beam.tokens]
        prefix_length = copy.truncate_to_prefix(tokens)
        missing = tokens[prefix_length:-1]
        if missing and isinstance(parent.session, MovesState) and isinstance(copy.session, MovesState):
            copy.append(tokens, exported(parent.session, prefix_length, len(tokens) - 1))
        elif missing:
            yield from self._feed(copy, tokens[:-1], prefix_length)
        return copy

    def _take(self, cancel: Cancel, *, is_new: bool) -> CachedSequence:
        """A sequence until the end of the search; one that is not new may have the prompt of an earlier call."""
        sequence = self._sequences.take(self._prompt, self._search.limit, is_new=is_new)
        self._resources.callback(self._sequences.give_back, sequence, self._prompt, to_pool=True)
        sequence.keep_all()  # others get copies
        self._resources.enter_context(sequence.interruptible(cancel))
        return sequence
