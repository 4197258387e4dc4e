"""A sequence: a session and its tokens, used by one request at a time; other requests may copy its KV."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from embedllm.adapters.adapter import is_same
from embedllm.backends.base import (
    FeedsAll,
    FeedsAsync,
    Forgets,
    Interrupted,
    Interruptible,
    MovesState,
    Session,
    TakesAdapters,
)
from embedllm.cancel import Cancel
from embedllm.kv_cache.block_cache import common_prefix
from embedllm.kv_cache.prefix_cache import CachedSpan, read_spans
from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.adapters.adapter import Adapter
    from embedllm.backends.base import KeyValues
    from embedllm.kv_cache.context_shift import ContextShift


_RECOMPUTE_TOKENS = 512  # per feed, when dropped KV is computed again


def ignore(count: int) -> None:
    """Ignores a count."""


class CachedSequence:
    """A session and the tokens in its KV cache."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.awaited = session if isinstance(session, FeedsAsync) else None  # asked once, not at every step
        self.tokens: list[int] = []
        self.adapter: Adapter | None = None  # that they were computed with
        self.lock = threading.Lock()  # held by whoever uses the session: its request, or one that copies from it
        self.prompt: Sequence[int] = ()  # of the request that runs
        self.is_running = False  # a request has it; closed by nobody else then
        self.is_ended = False  # by the end of the model
        self.before_feed: Callable[[], None] | None = None  # of a request's first feed; may take its time
        self.shift: ContextShift | None = None  # of the request that runs: what is dropped when the session is full
        self.note_dropped: Callable[[int], None] = ignore  # called with the number of dropped tokens
        self._shifted_from: int | None = None  # tokens from here on have seen others that are gone

    @property
    def reusable_tokens(self) -> list[int]:
        """The tokens whose KV other requests may reuse: those in front of what a context shift has moved."""
        plain = self.tokens if self._shifted_from is None else self.tokens[: self._shifted_from]
        return plain[: self.session.whole()] if isinstance(self.session, Forgets) else plain

    def feed(self, tokens: Sequence[int]) -> Logits:
        self._make_ready()
        return self._feed(tokens)

    def room(self) -> int | None:
        """How many tokens may be fed before a context shift; None: there is no context shift."""
        return None if self.shift is None else self.shift.context - len(self.tokens)

    def feed_all(self, tokens: Sequence[int]) -> list[Logits]:
        """As feed, in a session that FeedsAll; the logits after each token."""
        from embedllm.sampling.numpy_logits import NumpyLogits  # numpy

        with self.lock:
            if self.is_ended:
                raise Interrupted
            self._make_room(len(tokens))
            assert isinstance(self.session, FeedsAll)
            rows = self.session.feed_all(tokens)
            self.tokens += tokens
        return [NumpyLogits(row) for row in rows]  # views

    def truncate_to_prefix(self, prompt: Sequence[int]) -> int:
        """Truncates to the common prefix with a prompt; the number of cached tokens of the prompt.

        The last one is always fed again, for its logits.
        """
        held = self.back(min(common_prefix(self.tokens, prompt), len(prompt) - 1))
        with self.lock:
            self.forget_from(held)
        return held

    def back(self, position: int) -> int:
        """The last position at or before this one that it can be rewound to without computing anything again."""
        return self.session.back(position) if isinstance(self.session, Forgets) else position

    def set_keeps_all(self, keeps_all: bool) -> None:
        """Whether all of its KV is kept from now on, windows or not."""
        if isinstance(self.session, Forgets):
            self.session.keeps_all = keeps_all

    def keep_all(self) -> None:
        """As set_keeps_all, and what is no longer all there is computed again."""
        if isinstance(self.session, Forgets):
            with self.lock:
                self.session.keeps_all = True
                self.forget_from(self.session.whole())

    def forget_from(self, position: int) -> None:
        """Forgets the tokens from a position on; with the lock."""
        back = self.back(position)
        self.session.rewind(back)
        for start in range(back, position, _RECOMPUTE_TOKENS):
            self.session.feed(self.tokens[start : min(start + _RECOMPUTE_TOKENS, position)])
        del self.tokens[position:]
        if self._shifted_from is not None and position <= self._shifted_from:
            self._shifted_from = None

    def shares(self, tokens: Sequence[int], adapter: Adapter | None) -> int:
        """How many of these tokens others may have of it, computed with that adapter."""
        return common_prefix(self.reusable_tokens, tokens) if is_same(self.adapter, adapter) else 0

    def adapt(self, adapter: Adapter | None) -> None:
        """Forgets everything, to go on with another adapter."""
        with self.lock:
            if self.is_ended:
                raise Interrupted
            assert isinstance(self.session, TakesAdapters)  # else the model has none
            self.forget_from(0)
            self.session.adapt(adapter)
            self.adapter = adapter

    def rewind_by(self, count: int) -> None:
        """Forgets the last tokens."""
        with self.lock:
            if not self.is_ended:
                self.forget_from(len(self.tokens) - count)

    async def afeed(self, awaited: FeedsAsync, tokens: Sequence[int]) -> Logits:
        self._make_ready()  # sessions that are awaited have no KV to move
        if self.is_ended:
            raise Interrupted
        logits = await awaited.afeed(tokens)
        self.tokens += tokens
        return logits

    def end(self) -> None:
        """Stops the feed that is running, and every later one; from any thread."""
        self.is_ended = True
        if isinstance(self.session, Interruptible):
            self.session.interrupt()

    def close(self) -> None:
        """Frees the session, once nobody copies from it."""
        with self.lock:
            self.session.close()
            self.tokens.clear()

    def restore(self, sources: Sequence[CachedSpan], step: int) -> int:
        """Takes the KV of more of the prompt; spans that are gone meanwhile are computed, `step` tokens per feed.

        Gives how many tokens of the prompt are held without having been computed.
        """
        prompt, stop = self.prompt, sources[-1].stop
        for state in read_spans(sources):
            self.append(prompt, state)
        held = len(self.tokens)
        while len(self.tokens) < stop:
            self._feed(prompt[len(self.tokens) : min(len(self.tokens) + step, stop)])
        return held

    def append(self, prompt: Sequence[int], state: KeyValues) -> None:
        """Takes the KV of the next tokens of a prompt."""
        with self.lock:
            session = self.session
            assert isinstance(session, MovesState)  # there are no sources for others
            if self.is_ended:
                raise Interrupted
            session.import_state(state)
            self.tokens += prompt[len(self.tokens) : session.position]

    def _make_ready(self) -> None:
        ready, self.before_feed = self.before_feed, None
        if ready is not None:
            ready()

    def _feed(self, tokens: Sequence[int]) -> Logits:
        with self.lock:
            if self.is_ended:
                raise Interrupted
            self._make_room(len(tokens))
            logits = self.session.feed(tokens)
            self.tokens += tokens
        return logits

    def _make_room(self, count: int) -> None:
        """Applies the context shift when that many more tokens do not fit; with the lock."""
        shift, held = self.shift, len(self.tokens)
        if shift is None or not (dropped := shift.tokens_to_drop(held, count)):
            return
        session, start = self.session, shift.keep + dropped
        assert isinstance(session, MovesState)  # or there was no shift
        rest = self.tokens[start:]
        state = shift.shifted(session.export_state(start, held), start, by=dropped)
        self.forget_from(shift.keep)
        if rest:
            session.import_state(state)
            self.tokens += rest
            self._shifted_from = shift.keep
        self.note_dropped(dropped)

    def interruptible(self, cancel: Cancel) -> AbstractContextManager[None]:
        """Within the block, `cancel` stops a feed that is running."""
        return cancel.watching(self.session.interrupt) if isinstance(self.session, Interruptible) else nullcontext()
