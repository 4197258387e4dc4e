"""Runs a beam search on sequences: one for each beam, which all share what the prompt and their beginnings computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from embedllm.adapters.adapter import Adapter
from embedllm.backends.base import Interrupted, MovesState
from embedllm.cancel import Cancel
from embedllm.generation.beam_search import Beam, BeamSearch
from embedllm.generation.chunk import Statistics
from embedllm.kv_cache.sequence_pool import CachedSequence, SequencePool
from embedllm.kv_cache.transfer import exported
from embedllm.types import Logits

# options of a reply that single tokens are chosen or cut by, or that cannot go back, as a beam does
BEAMLESS = frozenset({"min_tokens", "stop", "logprobs", "speculate", "response_format"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One of the replies that were found."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str  # "stop", "length", "context" or "cancelled"
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
        cancel: Cancel,
        *,
        queued_s: float = 0.0,
        adapter: Adapter | None = None,
    ) -> None:
        """queued_s: waited before, for the statistics. adapter: of every beam."""
        self._search = search
        self._sequences = sequences
        self._prompt = list(prompt)
        self._cancel = cancel
        self._adapter = adapter
        self._held = ExitStack()
        self._free: list[CachedSequence] = []
        self._cached_tokens = 0
        self._queued_s = queued_s
        self._prefill_s = 0.0
        self._decode_s = 0.0

    def run(self, limit_reason: str) -> list[Reply]:
        """The replies, best first; of a search that was cancelled, what was found and what it was following."""
        is_whole = self._searched()
        replies = [self._reply(found.beam, limit_reason) for found in self._search.found]
        return replies if is_whole else replies + self.cancelled()

    def cancelled(self) -> list[Reply]:
        """What it is following, which was cancelled."""
        return [self._reply(beam, "cancelled") for beam in self._search.running]

    def _searched(self) -> bool:
        """Searches to the end; False when it was cancelled before."""
        with self._held:
            try:
                started = time.perf_counter()
                used = [self._taken(first=True)]
                rows: list[Logits] = [self._prefill(used[0])]
                self._prefill_s = time.perf_counter() - started
                while True:
                    self._search.accept(rows)
                    if self._search.is_done:
                        return True
                    used = self._placed(used)
                    rows = [self._feed(each, beam.tokens[-1:]) for each, beam in zip(used, self._search.running,
                                                                                    strict=True)]  # fmt: skip
                    self._decode_s = time.perf_counter() - started - self._prefill_s
            except Interrupted:
                return False

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

    def _prefill(self, sequence: CachedSequence) -> Logits:
        step = self._sequences.engine.chunk

        def note_held(held: int) -> None:
            self._cached_tokens = held

        self._cached_tokens = self._sequences.begin(
            sequence, self._prompt, step=step, note_held=note_held, adapter=self._adapter
        )
        rest = self._prompt[self._cached_tokens :]
        logits = [self._feed(sequence, rest[at : at + step]) for at in range(0, len(rest), step)]
        return logits[-1]

    def _placed(self, used: Sequence[CachedSequence]) -> list[CachedSequence]:
        """For each beam a sequence that holds all of it but the last token.

        The first beam that prolongs another takes its sequence over; the others get copies, made while it still stands
        where it stood.
        """
        beams = self._search.running
        heirs: dict[int, int] = {}
        for place, beam in enumerate(beams):
            heirs.setdefault(beam.parent, place)
        self._free += [sequence for place, sequence in enumerate(used) if place not in heirs]
        return [
            used[beam.parent] if heirs[beam.parent] == place else self._copy(used[beam.parent], beam)
            for place, beam in enumerate(beams)
        ]

    def _copy(self, parent: CachedSequence, beam: Beam) -> CachedSequence:
        copy = self._free.pop() if self._free else self._taken()
        if copy.adapter is not self._adapter:  # a new one
            copy.adapt(self._adapter)
        tokens = [*self._prompt, *beam.tokens]
        held = copy.truncate_to_prefix(tokens)
        missing = tokens[held:-1]
        if missing and isinstance(parent.session, MovesState) and isinstance(copy.session, MovesState):
            copy.session.import_state(exported(parent.session, held, len(tokens) - 1))
            copy.tokens += missing
        elif missing:
            step = self._sequences.engine.chunk
            for at in range(0, len(missing), step):
                self._feed(copy, missing[at : at + step])
        return copy

    def _feed(self, sequence: CachedSequence, tokens: Sequence[int]) -> Logits:
        if self._cancel.cancelled:
            raise Interrupted
        return sequence.feed(tokens)

    def _taken(self, *, first: bool = False) -> CachedSequence:
        """A sequence until the end of the search; the first may have the prompt from an earlier call."""
        needed = len(self._prompt) + self._search.limit
        found = self._sequences.take(needed) if first else None
        sequence = found or self._sequences.new(len(self._prompt), is_running=True)
        self._held.callback(self._sequences.give_back, sequence, to_pool=True)
        sequence.keep_all()  # others get copies
        self._held.enter_context(sequence.interruptible(self._cancel))
        return sequence
