"""A sequence: a session and its tokens, used by one request at a time. Called in the thread of the device's loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from embedllm.backends.base import (
    Engine,
    FeedsAll,
    FeedsAsync,
    FeedsRows,
    Foresees,
    Forgets,
    Interrupted,
    Interruptible,
    KeepsStates,
    MovesState,
    PlacesImages,
    ReadsPrompts,
    RunsBatches,
    TakesAdapters,
)
from embedllm.backends.images import images_of
from embedllm.cancel import Cancel
from embedllm.kv_cache.block_cache import common_prefix
from embedllm.kv_cache.transfer import TRANSFER_TOKENS, CachedSpan, exported, read_spans
from embedllm.package.lora.adapter import is_same
from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues, Session
    from embedllm.kv_cache.context_shift import ContextShift
    from embedllm.kv_cache.recurrent_prefix import CachedPrefix
    from embedllm.package.lora.adapter import Adapter
    from embedllm.sampling.draws import Draws


_RECOMPUTE_TOKENS = 512  # per feed, when dropped KV is computed again
T = TypeVar("T")


class Caller(Protocol):
    """Has work done in the thread that a device's sessions are used in (embedllm/generation/engine_loop.py)."""

    def call(self, work: Callable[[], T]) -> T:
        """What the work gives; raises what it raises."""
        ...

    def post(self, work: Callable[[], object]) -> None:
        """Has it done later; from any thread, finalizers too."""
        ...

    def when_dropped(self, owner: object, work: Callable[[], object]) -> None:
        """Has it done once nobody holds `owner` any more."""
        ...


def ignore(told: object) -> None:
    """Does nothing with what it is called with."""


class CachedSequence:
    """A session and the tokens in its KV cache."""

    def __init__(self, engine: Engine, loop: Caller, capacity: int = 0) -> None:
        """capacity: tokens that it has room for from the beginning."""
        self.engine = engine
        self.loop = loop
        # what they can do is asked once, not at every step
        self.batches = engine if isinstance(engine, RunsBatches) and engine.max_batch > 1 else None
        self.prompt_batches = engine if isinstance(engine, ReadsPrompts) and engine.max_batch > 1 else None
        self.session = engine.open(capacity)
        self.awaited = self.session if isinstance(self.session, FeedsAsync) else None
        self.tokens: list[int] = []
        self.adapter: Adapter | None = None  # that they were computed with
        self.is_running = False  # a request has it
        self.is_ended = False  # by the end of the model
        self.is_dropped = False  # nobody wants it after the request that has it
        self.has_failed = False  # in the middle of growing: the session can be used no more
        self.shift: ContextShift | None = None  # of the request that runs: what is dropped when the session is full
        self.note_dropped: Callable[[int], None] = ignore  # called with the number of dropped tokens
        self.when_reopened: Callable[[Session], None] = ignore  # called with a session that takes the place of another
        self.landmarks: Sequence[int] = ()  # positions at which pieces of a prompt end
        self._draws: Draws | None = None  # how the request that runs chooses its tokens
        self.evicted: list[int] = []  # tokens whose KV was taken away while their request waits
        self._swapped: list[KeyValues] = []  # that KV, in the host's memory
        self._shifted_from: int | None = None  # tokens from here on have seen others that are gone

    @property
    def reusable_tokens(self) -> list[int]:
        """The tokens whose KV other requests may reuse: those in front of what a context shift has moved."""
        plain = self.tokens if self._shifted_from is None else self.tokens[: self._shifted_from]
        return plain[: self.session.whole()] if isinstance(self.session, Forgets) else plain

    def feed(self, tokens: Sequence[int]) -> Logits:
        self.prepare(len(tokens))
        logits = self.session.feed(tokens)
        self.tokens += tokens
        return logits

    def feed_all(self, tokens: Sequence[int]) -> Sequence[Logits]:
        """As feed, in a session that FeedsAll; the logits after each token."""
        from embedllm.sampling.numpy_logits import NumpyLogits  # numpy

        self.prepare(len(tokens))
        if isinstance(self.session, FeedsRows):
            rows = self.session.feed_rows(tokens)
        else:
            assert isinstance(self.session, FeedsAll)
            rows = [NumpyLogits(row) for row in self.session.feed_all(tokens)]  # views
        self.tokens += tokens
        return rows

    async def afeed(self, awaited: FeedsAsync, tokens: Sequence[int]) -> Logits:
        self.prepare(len(tokens))
        logits = await awaited.afeed(tokens)
        self.tokens += tokens
        return logits

    def prepare(self, count: int) -> None:
        """Before that many tokens are fed: makes room for them. Raises Interrupted after the end of the model."""
        if self.is_ended:
            raise Interrupted
        self._make_room(count)

    def note_appended(self, tokens: Sequence[int]) -> None:
        """Its session was fed these, together with others."""
        self.tokens += tokens

    def room(self) -> int | None:
        """How many tokens may be fed before a context shift; None: there is no context shift."""
        return None if self.shift is None else self.shift.context - len(self.tokens)

    @property
    def max_feed(self) -> int:
        """How many tokens one feed may have: between two context shifts, as many as one makes room for."""
        return self.engine.context if self.shift is None else self.shift.step

    def pieces(self, prompt: Sequence[int], start: int, most: int) -> list[Sequence[int]]:
        """A prompt from a place on, in pieces of `most` tokens, or of what piece() says."""
        pieces: list[Sequence[int]] = []
        while start < len(prompt):
            end = start + self.piece(prompt, start, min(most, len(prompt) - start), position=start)
            pieces.append(prompt[start:end])
            start = end
        return pieces

    def piece(self, tokens: Sequence[int], start: int, count: int, *, position: int) -> int:
        """How many of a prompt's tokens are fed from a place on, where `count` are asked for.

        More, where an image would be cut whose tokens attend to one another. Fewer, where states are to be kept.
        position: of the first of them in the sequence.
        """
        count = min([count, *(at - position for at in self.landmarks if at > position)])
        images = images_of(self.engine)
        return count if images is None else images.end_of_piece(tokens, start + count) - start

    def truncate_to_prefix(self, prompt: Sequence[int]) -> int:
        """Truncates to the common prefix with a prompt; the number of cached tokens of the prompt.

        The last one is always fed again, for its logits.
        """
        cached_count = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        if (images := images_of(self.engine)) is not None:
            cached_count = images.start_of_piece(prompt, cached_count)
        cached_count = self.back(cached_count)
        self.forget_from(cached_count)
        return cached_count

    def back(self, position: int) -> int:
        """The last position at or before this one that it can be rewound to without computing anything again."""
        if isinstance(self.session, KeepsStates):
            return self.session.last_kept(position)
        return self._held(position)

    def _held(self, position: int) -> int:
        """As back(), where what a recurrent model computes again waits for the next feed."""
        return self.session.back(position) if isinstance(self.session, Forgets) else position

    def set_keeps_all(self, keeps_all: bool) -> None:
        """Whether all of its KV is kept from now on, windows or not."""
        if isinstance(self.session, Forgets):
            self.session.keeps_all = keeps_all

    def keep_all(self) -> None:
        """As set_keeps_all, and what is no longer all there is computed again."""
        if isinstance(self.session, Forgets):
            self.session.keeps_all = True
            self.forget_from(self.session.whole())

    def forget_from(self, position: int) -> None:
        """Forgets the tokens from a position on."""
        back = self._held(position)
        self.session.rewind(back)
        while back < position:
            end = min(back + self.piece(self.tokens, back, _RECOMPUTE_TOKENS, position=back), position)
            self.session.feed(self.tokens[back:end])
            back = end
        del self.tokens[position:]
        if self._shifted_from is not None and position <= self._shifted_from:
            self._shifted_from = None

    def shares(self, tokens: Sequence[int], adapter: Adapter | None) -> int:
        """How many of these tokens others may have of it, computed with that adapter."""
        return common_prefix(self.reusable_tokens, tokens) if is_same(self.adapter, adapter) else 0

    def adapt(self, adapter: Adapter | None) -> None:
        """Forgets everything, to go on with another adapter."""
        if self.is_ended:
            raise Interrupted
        assert isinstance(self.session, TakesAdapters)  # else the model has none
        self.forget_from(0)
        self.session.adapt(adapter)
        self.adapter = adapter

    def rewind_by(self, count: int) -> None:
        """Forgets the last tokens."""
        if not self.is_ended:
            self.forget_from(len(self.tokens) - count)

    def foresee(self, draws: Draws | None) -> None:
        """Says how its next tokens are chosen, where a session makes use of that; None: that is not known."""
        self._draws = draws
        if isinstance(self.session, Foresees):
            self.session.foresee(draws)

    def end(self) -> None:
        """Stops the feed that is running, and every later one; from any thread."""
        self.is_ended = True
        self.interrupt()

    def interrupt(self, stop: bool = True) -> None:
        """Stops the feed that is running, where that can be; from any thread."""
        if isinstance(self.session, Interruptible):
            self.session.interrupt(stop)

    def interruptible(self, cancel: Cancel) -> AbstractContextManager[None]:
        """Within the block, `cancel` stops a feed that is running."""
        return cancel.watching(self.interrupt)

    def close(self) -> None:
        """Frees the session."""
        self.session.close()
        self.tokens.clear()
        self.forget_evicted()

    def forget_evicted(self) -> None:
        """Lets go of what evict() has put away: its request goes on no more."""
        self.evicted, self._swapped = [], []

    def evict(self) -> None:
        """Gives the memory of its KV to others until recall(): its request waits.

        KV in a device's own memory goes to the host's, which is sooner there again than computed; other KV is dropped.
        """
        self.evicted, self._swapped = list(self.tokens), []
        is_whole = len(self.reusable_tokens) == len(self.tokens)
        if self.engine.device.memory and isinstance(self.session, MovesState) and is_whole:
            from embedllm.backends.sessions.kv_arrays import on_host  # numpy

            count = len(self.tokens)
            self._swapped = [
                on_host(exported(self.session, at, min(at + TRANSFER_TOKENS, count)))
                for at in range(0, count, TRANSFER_TOKENS)
            ]
        self.free()

    def free(self) -> None:
        """Gives the memory of its KV back, and forgets all tokens; it can be used as before."""
        keeps_all = isinstance(self.session, Forgets) and self.session.keeps_all
        before, self.session = self.session, self.engine.open()
        self.when_reopened(self.session)
        self.set_keeps_all(keeps_all)
        if self.adapter is not None and isinstance(self.session, TakesAdapters):
            self.session.adapt(self.adapter)
        self.foresee(self._draws)
        before.close()
        self.has_failed = False
        self.tokens.clear()
        self._shifted_from = None

    def recall(self) -> list[int]:
        """Takes the KV back that evict() has put away; the tokens that have to be computed again."""
        missing, swapped = self.evicted, self._swapped
        self.forget_evicted()
        for state in swapped:
            self.append(missing, state)
        return missing if not swapped else []

    def restore(self, prompt: Sequence[int], sources: Sequence[CachedSpan]) -> None:
        """Takes the cached KV of more of a prompt, up to the first span that is gone meanwhile."""
        for state in read_spans(sources):
            self.append(prompt, state)

    def restore_prefix(self, prompt: Sequence[int], prefix: CachedPrefix) -> None:
        """As restore, of a recurrent model: all of a prefix or nothing."""
        assert isinstance(self.session, KeepsStates)  # there are no prefixes for others
        if self.is_ended:
            raise Interrupted
        tokens, states = prompt[prefix.start : prefix.stop], prefix.states()
        if states is not None and self.session.import_prefix(tokens, read_spans(prefix.spans), states):
            self.tokens += tokens

    def set_landmarks(self, positions: Sequence[int]) -> None:
        """Has the states of a recurrent model kept at these positions of the prompt that is fed next."""
        self.landmarks = positions
        if isinstance(self.session, KeepsStates):
            self.session.prefer(positions)

    def append(self, prompt: Sequence[int], state: KeyValues) -> None:
        """Takes the KV of the next tokens of a prompt."""
        assert isinstance(self.session, MovesState)  # there are no sources for others
        if self.is_ended:
            raise Interrupted
        self.session.import_state(state)
        added = prompt[len(self.tokens) : self.session.position]
        if isinstance(self.session, PlacesImages):
            self.session.put_images(len(self.tokens), added)
        self.tokens += added

    def _make_room(self, count: int) -> None:
        """Applies the context shift when that many more tokens do not fit."""
        shift, length = self.shift, len(self.tokens)
        if shift is None or not (dropped := shift.tokens_to_drop(length, count)):
            return
        session, start = self.session, shift.keep + dropped
        assert isinstance(session, MovesState)  # or there was no shift
        rest = self.tokens[start:]
        state = shift.shifted(session.export_state(start, length), start, by=dropped)
        self.forget_from(shift.keep)
        if rest:
            session.import_state(state)
            self.tokens += rest
            self._shifted_from = shift.keep
        self.note_dropped(dropped)
