"""A sequence of a recurrent model, which is rewound by going back to a copy of its states and feeding on from there.

Some layers of such a model keep a state of fixed size that each token changes, so that an earlier one cannot be told
from a later one. Copies are made where a feed of several tokens begins or has ended, and for drafts, until these are
accepted; between two copies the tokens from the earlier one on are fed again, together with the next feed. Not behind
accepted drafts where what is wrapped can replay activations: it computes their states alone
(docs/concepts.md#recurrent-models).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from embedllm.backends.base import (
    BatchRow,
    Engine,
    FeedsAll,
    FeedsRows,
    Foresees,
    GivesHidden,
    Interruptible,
    MovesState,
    PlacesImages,
    Session,
    TakesAdapters,
)
from embedllm.backends.checks import check_rewind, check_tokens
from embedllm.backends.images import images_of
from embedllm.errors import DeviceError
from embedllm.package.recurrent_state import state_bytes, state_shapes
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.backends.base import KeptHidden, KeyValues, RecurrentStates
    from embedllm.package.lora.adapter import Adapter
    from embedllm.package.package import Package
    from embedllm.sampling.draws import Draws
    from embedllm.types import F32, Logits

_MOST = 16  # copies of a sequence
_MOST_BYTES = 256 << 20  # that they take together; one there is always
T = TypeVar("T")
S = TypeVar("S")  # copies of states, wherever they lie
S_contra = TypeVar("S_contra", contravariant=True)


class Plain(Session, FeedsAll, TakesAdapters, Protocol[S]):
    """What is wrapped: a session whose rewind leaves its states as they are, but for one to the beginning."""

    def states(self) -> S:
        """Copies, of a session that holds tokens; they stay what they are."""
        ...

    def set_states(self, states: S) -> None: ...


@runtime_checkable
class MovesStates(Protocol[S_contra]):
    """What is wrapped, where its states can be given to another session."""

    def copied(self, states: S_contra) -> RecurrentStates:
        """Copies, on the device or in the host's memory."""
        ...

    def take_states(self, states: RecurrentStates) -> None:
        """Copies these in place of its own."""
        ...


@runtime_checkable
class ReplaysActivations(Protocol):
    """What is wrapped, where its states can be computed without the model's matrices, token by token."""

    def feed_drafts(self, tokens: Sequence[int]) -> F32:
        """As feed_all; keeps what that takes of these tokens, until the next feed."""
        ...

    def can_replay(self, start: int, position: int) -> bool:
        """Whether replay() can get from the states of one position to those of another one."""
        ...

    def replay(self, position: int) -> None:
        """Rewinds to a position, and computes its states of those that were set."""
        ...


class _Engine(Engine, Protocol):
    package: Package


class StatefulSession(Generic[S]):
    """A session like others, which gives KV away with states only: KeepsStates."""

    def __init__(self, engine: _Engine, plain: Plain[S]) -> None:
        self.position = 0
        self._plain = plain  # holds `position` tokens, or fewer after a rewind
        self._engine = engine
        self._tokens: list[int] = []
        self._copies: dict[int, S] = {}  # by position
        self._preferred: set[int] = set()  # positions
        self.state_shapes = state_shapes(engine.package.decoder)
        self._most = max(1, min(_MOST, _MOST_BYTES // state_bytes(engine.package.decoder)))
        self._is_restored = True  # the states that are held belong to its position; else the device failed to go back
        self._was_many = False  # the last feed, which was no draft
        self._draft: int | None = None  # the copy to go back to when drafts are rejected

    @property
    def capacity(self) -> int:
        return self._plain.capacity

    @property
    def hidden(self) -> KeptHidden[object] | None:
        """Of what is held, whatever has to be fed again."""
        return self._plain.hidden if isinstance(self._plain, GivesHidden) else None

    def feed(self, tokens: Sequence[int]) -> Logits:
        return self._fed(tokens, self._plain.feed)

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._fed(tokens, self._plain.feed_all)[-len(tokens) :]

    def feed_rows(self, tokens: Sequence[int]) -> Sequence[Logits]:
        plain = self._plain
        if isinstance(plain, FeedsRows):
            return self._fed(tokens, plain.feed_rows, are_drafts=True)[-len(tokens) :]
        feed = plain.feed_drafts if isinstance(plain, ReplaysActivations) else plain.feed_all
        return [NumpyLogits(row) for row in self._fed(tokens, feed, are_drafts=True)[-len(tokens) :]]

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position
        del self._tokens[position:]
        self._copies = {at: states for at, states in self._copies.items() if at <= position}
        self._preferred = {at for at in self._preferred if at <= position}
        if self._replayer() is not None:
            self._is_restored = False  # before the next feed: a step that is clocked, if there is one
        elif self._plain.position > position:
            self._go_back()

    def adapt(self, adapter: Adapter | None) -> None:
        self._plain.adapt(adapter)

    def foresee(self, draws: Draws | None) -> None:
        if isinstance(self._plain, Foresees):
            self._plain.foresee(draws)

    def interrupt(self, stop: bool = True) -> None:
        if isinstance(self._plain, Interruptible):
            self._plain.interrupt(stop)

    def close(self) -> None:
        self._plain.close()
        self._tokens.clear()
        self._copies.clear()
        self.position = 0

    @property
    def kv(self) -> MovesState | None:
        plain = self._plain
        return plain if isinstance(plain, MovesState) and isinstance(plain, MovesStates) else None

    def kept(self) -> list[int]:
        current = {self._plain.position} if self._is_restored else set()
        return sorted({*self._copies, *current} - {0})

    def last_kept(self, position: int) -> int:
        return max((at for at in self.kept() if at <= position), default=0)

    def prefer(self, positions: Iterable[int]) -> None:
        self._preferred |= set(positions)

    def worth_keeping(self, positions: Iterable[int], start: int, most: int) -> list[int]:
        left = [at for at in positions if at > start]
        while len(left) > most:
            places = [start, *left]
            gaps = {places[i]: places[i + 1] - places[i - 1] for i in range(1, len(places) - 1)}
            left.remove(min(gaps, key=lambda place: (place in self._preferred, gaps[place])))
        return left

    def export_states(self, position: int) -> RecurrentStates:
        plain = self._plain
        assert isinstance(plain, MovesStates)
        return plain.copied(self._copies[position] if position in self._copies else self._plain.states())

    def import_prefix(self, tokens: Sequence[int], kv: Iterable[KeyValues], states: RecurrentStates) -> bool:
        plain, start = self._plain, self.position
        assert isinstance(plain, MovesState)
        assert isinstance(plain, MovesStates)
        if not self._is_restored:
            self._go_back()
        if self._plain.position != start:
            return False
        self._note(many=True)  # to be gone back to
        try:
            for each in kv:
                plain.import_state(each)
            is_whole = self._plain.position == start + len(tokens)
            if is_whole:
                if isinstance(plain, PlacesImages):
                    plain.put_images(start, tokens)
                plain.take_states(states)
        except BaseException:
            with suppress(DeviceError):  # before the next feed then
                self._go_back()
            raise
        if not is_whole:
            self._go_back()
            return False
        self._tokens += tokens
        self.position = self._plain.position
        self._keep_states()
        return True

    @property
    def steps_from(self) -> Plain[S] | None:
        """What is wrapped, where a step can be fed to it as to any session; None: other tokens are to be fed first."""
        return self._plain if self._is_restored and self._plain.position == self.position else None

    def restore(self) -> None:
        """Computes the states that a rewind has left to the next feed, where no token is fed again for that."""
        if self._replayer() is not None:
            self._go_back()

    def begin_step(self) -> None:
        """Before one token is fed to what is wrapped, in a run of several sessions."""
        self._note(many=False)

    def end_step(self, token: int) -> None:
        """After that; not where it failed, and left all as it was."""
        self._tokens.append(token)
        self.position = self._plain.position

    def _fed(self, tokens: Sequence[int], feed: Callable[[Sequence[int]], T], *, are_drafts: bool = False) -> T:
        """Appends tokens, behind those that a rewind has left to be fed again."""
        engine, plain = self._engine, self._plain
        vocabulary = engine.package.decoder.vocabulary
        check_tokens(tokens, self.position, vocabulary=vocabulary, limit=engine.context, remedy=engine.remedy,
                     images=images_of(engine))  # fmt: skip
        if not self._is_restored:
            self._go_back()
        try:
            while (left := self.position - plain.position) and left + len(tokens) > engine.chunk:
                self._note(many=True)
                plain.feed(self._tokens[plain.position : min(plain.position + engine.chunk, self.position)])
            again = self._tokens[plain.position :]
            self._note(many=len(again) + len(tokens) > 1, are_drafts=are_drafts)
            result = feed([*again, *tokens])
        except BaseException:
            with suppress(DeviceError):  # before the next feed then
                self._go_back()  # what a feed that was stopped has made of the states nobody knows
            raise
        self._tokens += tokens
        self.position = plain.position
        return result

    def _note(self, *, many: bool, are_drafts: bool = False) -> None:
        """Copies the states before a feed of several tokens, and before the one that follows such a feed."""
        at = self._plain.position
        if self._draft is not None and self._draft != at:
            self._copies.pop(self._draft, None)
        if self._draft != at or not are_drafts:
            self._draft = None
        if at and (many or self._was_many) and at not in self._copies:
            self._draft = at if are_drafts and not self._was_many else None  # the end of a prompt is kept
            self._keep_states()
        self._was_many = many and not are_drafts

    def _keep_states(self) -> None:
        """Copies those of now; another copy goes where there are too many."""
        self._copies[self._plain.position] = self._plain.states()
        self._copies = {at: self._copies[at] for at in self.worth_keeping(self._copies, 0, self._most)}

    def _go_back(self) -> None:
        """To the last copy, or to the beginning. Where the device fails, it is done before the next feed."""
        self._is_restored = False
        at, plain, replayer = max(self._copies, default=0), self._plain, self._replayer()
        if replayer is not None:
            plain.set_states(self._last_copy(at))
            replayer.replay(self.position)
        else:
            plain.rewind(at)
            if at:
                plain.set_states(self._copies[at])
        self._is_restored = True

    def _replayer(self) -> ReplaysActivations | None:
        """What is wrapped, where it gets from the last copy to the position without feeding tokens again."""
        at, plain = max(self._copies, default=0), self._plain
        if not at or plain.position <= self.position or not isinstance(plain, ReplaysActivations):
            return None
        return plain if plain.can_replay(at, self.position) else None

    def _last_copy(self, at: int) -> S:
        """A copy from which states are computed: in its place, where it was for drafts only."""
        if at != self._draft:
            return self._copies[at]
        self._draft = None
        return self._copies.pop(at)


def step_together(
    engine: _Engine,
    rows: Sequence[BatchRow],
    joins: Callable[[Session, int], bool],
    run: Callable[[Sequence[BatchRow]], Sequence[Logits]],
) -> list[Logits]:
    """One token for each of some sessions of an engine, as RunsBatches.run_batch.

    joins: whether what a session wraps can step with others by that token. Those that cannot, and those that a rewind
    has put behind, go through their session, which knows what to do with states where a run fails.
    run: as run_batch, of what the sessions wrap; where it raises, those that have stepped all the same are rewound.
    """
    sessions = [_stateful(row.session) for row in rows]
    vocabulary = engine.package.decoder.vocabulary
    for session, (_, tokens) in zip(sessions, rows, strict=True):
        check_tokens(tokens, session.position, vocabulary=vocabulary, limit=engine.context, remedy=engine.remedy,
                     images=images_of(engine))  # fmt: skip
    positions = [session.position for session in sessions]
    together: dict[int, BatchRow] = {}  # by their places among the rows
    for at, (session, (_, tokens)) in enumerate(zip(sessions, rows, strict=True)):
        session.restore()
        plain = session.steps_from
        if plain is not None and joins(plain, tokens[0]):
            together[at] = BatchRow(plain, tokens)
    logits: dict[int, Logits] = {}
    try:
        logits |= {at: sessions[at].feed(row.tokens) for at, row in enumerate(rows) if at not in together}
        for at in together:
            sessions[at].begin_step()
        logits |= zip(together, run(list(together.values())) if together else (), strict=True)
        for at, (_, (token,)) in together.items():
            sessions[at].end_step(token)
    except BaseException:
        for session, position in zip(sessions, positions, strict=True):
            with suppress(DeviceError):  # before its next feed then
                session.rewind(position)
        raise
    return [logits[at] for at in range(len(rows))]


def _stateful(session: Session) -> StatefulSession[object]:
    assert isinstance(session, StatefulSession)  # of such an engine
    return session
