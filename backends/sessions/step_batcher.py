"""Decode steps of several sessions as one run, which reads the weights once for all of them.

A step on a CPU is bound by reading weights: eight sequences in one run take three times as long as one, not eight times
(docs/performance.md#many-sequences). Steps come from threads of their callers. The first that finds nothing under way
waits a moment for those that took part in the run before, then runs the steps of all that came, and wakes them.

The KV of sessions that step together lies in shared buffers, [slots, kv heads, capacity, D], a slot for each. It is
copied there when a session first steps with another, and back when it stays away from a few runs. A session that is
alone keeps buffers of its own, and nothing is copied.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.base import PRIORITY_S, Interrupted
from embedllm.backends.sessions.sparse_memory import empty_rows, move_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.adapters.adapter import Adapter
    from embedllm.backends.base import Cached
    from embedllm.backends.sessions.window_retention import WindowedKvRetention

MOST = 16  # sequences in one run
SHORT = 16  # tokens that a member feeds at once without leaving the shared buffers: a guess of what comes next, say
_MISSED = 3  # runs after which a session that took no part gets buffers of its own again
_PATIENCE = 0.25  # of the time of a run: how long it is waited for those of the run before
_LEAST_PATIENCE_S = 0.001
_LEAST_IDLE_S = 0.1
_PIECE = 64  # tokens of a prompt that are fed at once while others wait for their next token
_MOST_SLOWED = 2.0  # times a step that is made beside a prompt may take on the average, what follows it included
_STEP = 256  # tokens; capacities are multiples of it
_KV, _PROMPT = "kv", "prompt"


class Member(Protocol):
    """A session whose steps may be run with those of others."""

    position: int
    capacity: int
    kv: dict[str, NDArray[Cached]]  # by name, [1, kv heads, capacity, D]
    retention: WindowedKvRetention  # of the engine's windows
    logits: NDArray[np.floating]  # [1, 1, V], of the last step
    is_stopping: bool
    priority: int  # lower ones are fed earlier
    adapter: Adapter | None  # one run has one

    def hold(self, kv: dict[str, NDArray[Cached]], capacity: int) -> None:
        """Reads and writes these from now on, which may be some of them."""
        ...

    def run_alone(self, token: int) -> None:
        """One step; its logits are in `logits`, and the position is one more."""
        ...


class Runs(Protocol):
    """What runs a step of several sequences: ONNX Runtime, or a fake of it."""

    def __call__(
        self,
        kv: dict[str, NDArray[Cached]],
        tokens: NDArray[np.int64],
        positions: Sequence[int],
        adapter: Adapter | None,
        stepping: Sequence[Member | None],
    ) -> NDArray[np.floating]:
        """Appends one token to each sequence; logits [B, V], valid until the next call.

        kv: by name, [B, kv heads, capacity, D], written in place. tokens: [B, 1]. positions: held before it.
        stepping: None for one that only lies between others, whose token and logits nobody wants.
        """
        ...

    def release(self) -> None:
        """Lets go of the buffers of the last call."""
        ...


@dataclass(slots=True, eq=False)
class _Step:
    session: Member
    token: int
    rank: int  # lower ones come earlier
    error: BaseException | None = None
    is_done: bool = False


class Batch:
    """The steps of one engine's sessions. Called from any thread."""

    def __init__(self, run: Runs, *, context: int) -> None:
        self._run = run
        self._context = context
        self._changed = threading.Condition()  # reentrant: a signal handler may interrupt the thread that has it
        self._taken: set[str] = set()  # what one thread does at a time, while it does it: _KV, _PROMPT
        self._asking: dict[str, list[tuple[float, int]]] = {_KV: [], _PROMPT: []}  # since when, and which thread
        self._is_feeding = False  # a prompt, now
        self._fed = -math.inf  # when the last piece of one was
        self._waiting: list[_Step] = []
        self._since = 0.0  # when the first of them came, or the last run ended
        self._expected: set[Member] = set()  # took part in the last run
        self._stepped: dict[Member, float] = {}  # not long ago: when its last run ended
        self._run_s = 0.0  # how long that took
        self._ended = -math.inf  # when
        self._usual_s = 0.0  # from run to run when no prompt is fed beside them, a moving average
        self._runs = 0  # so far; a run that passes over a step is worth one of its priority
        self._steps = 0  # runs one after the other
        self._steps_s = 0.0  # all of them took
        self._members: list[Member] = []  # by their slots
        self._missed: dict[Member, int] = {}  # runs in a row
        self._kv: dict[str, NDArray[Cached]] = {}
        self._capacity = 0

    def step(self, session: Member, token: int) -> None:
        """Appends a token, in one run with what other threads append meanwhile.

        Raises Interrupted when the session was stopped, and what the run raises.
        """
        with self._changed:
            step = _Step(session, token, self._runs + session.priority)
            if not self._waiting:
                self._since = time.perf_counter()
            self._waiting.append(step)
            self._changed.notify_all()
            while not step.is_done and (_KV in self._taken or not self._is_turn(step) or self._patience_s() > 0):
                if session.is_stopping and step in self._waiting:
                    self._waiting.remove(step)
                    self._changed.notify_all()  # it may be another's turn now
                    raise Interrupted
                is_due = _KV not in self._taken and self._is_turn(step)
                self._changed.wait(self._patience_s() if is_due else None)
            together = [] if step.is_done else self._gathered(step)
        if together:
            self._lead(together)
        if step.error is not None:
            raise step.error

    @contextmanager
    def apart(self, session: Member, count: int) -> Generator[None, None, None]:
        """Within the block, the session feeds its tokens by itself: beside the steps of others when they are many.

        One long feed at a time, so that those who wait for their next token share the cores with one only: the most
        urgent that asks for it, of others the first.
        """
        is_member = session in self._members  # it joins by its own steps only; runs of others may let it go
        if count <= SHORT and not is_member:
            yield
            return
        if is_member:
            with self._taking(_KV, session):
                if count > SHORT:
                    self._let_go_of(session, room=count)
                else:
                    self._check_room(session, count)
                    yield
        if count > SHORT:
            with self._taking(_PROMPT, session):
                yield

    def pieces(self, session: Member, count: int) -> Generator[int, None, None]:
        """The chunk lengths for a prompt of that many tokens: all at once when nobody else waits for a token.

        Else small ones, with a pause after each that keeps the steps of others at _MOST_SLOWED of their usual time.
        """
        while count > 0:
            size = min(_PIECE, count) if count > SHORT and self._others_step(session) else count
            steps, steps_s = self._steps, self._steps_s
            self._is_feeding = True
            try:
                yield size
            finally:
                self._is_feeding, self._fed = False, time.perf_counter()
            count -= size
            if count > 0:
                self._rest(session, steps, steps_s)

    def forget(self, session: Member) -> None:
        """The session is closed: its slot goes to others."""
        with self._taking(_KV):
            self._expected.discard(session)
            self._stepped.pop(session, None)
            if session in self._members:
                self._leave(session, is_kept=False)

    def wake(self) -> None:
        """Lets sessions see that they were stopped."""
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def _taking(self, what: str, session: Member | None = None) -> Generator[None, None, None]:
        """Within the block no other thread does this. Raises Interrupted when the session is stopped before.

        Those who ask for it have it by priority and the time since when they do.
        """
        turn = (
            time.perf_counter() + PRIORITY_S * (session.priority if session is not None else 0),
            threading.get_ident(),
        )
        asking = self._asking[what]
        with self._changed:
            asking.append(turn)
            try:
                while what in self._taken or turn != min(asking):
                    if session is not None and session.is_stopping:
                        raise Interrupted
                    self._changed.wait()
                self._taken.add(what)
            finally:
                asking.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken.remove(what)
                self._changed.notify_all()

    def _others_step(self, session: Member) -> bool:
        """Whether somebody else is in the middle of a reply; not who has just ended one, and goes on with a prompt."""
        if _KV in self._taken:
            return True
        recently = time.perf_counter() - self._idle_s()
        return any(ended > recently for other, ended in list(self._stepped.items()) if other is not session)

    def _idle_s(self) -> float:
        """Without a step: nobody is in the middle of a reply."""
        return max(_LEAST_IDLE_S, 4 * self._run_s)

    def _count(self, ended: float) -> None:
        """Notes the time from run to run: it is how long those wait who take part in each."""
        before, between_s = self._ended, ended - self._ended
        self._ended = self._since = ended
        if between_s > _LEAST_IDLE_S + self._run_s:
            return  # nobody waited
        self._steps, self._steps_s = self._steps + 1, self._steps_s + between_s
        if not self._is_feeding and before > self._fed:
            self._usual_s += (between_s - self._usual_s) * (0.1 if self._usual_s else 1.0)

    def _rest(self, session: Member, steps: int, steps_s: float) -> None:
        """Waits while others make as many quick steps as make up for those that were slowed since then."""
        with self._changed:
            ended = self._ended
            while _KV in self._taken and self._ended == ended:  # slowed too, by all of it where runs take turns
                self._changed.wait(_LEAST_IDLE_S)
            slowed, slowed_s = self._steps - steps, self._steps_s - steps_s
            if not slowed or not self._usual_s:
                return
            # the average of all of them is _MOST_SLOWED when quick ones take the usual time
            quick = slowed * (slowed_s / slowed / self._usual_s - _MOST_SLOWED) / (_MOST_SLOWED - 1)
            until = self._steps + quick
            while self._steps < until and self._others_step(session):
                if session.is_stopping:
                    raise Interrupted
                self._changed.wait(_LEAST_IDLE_S)

    def _is_turn(self, step: _Step) -> bool:
        """Whether the next run may have the step's adapter: the first in rank says which one it has."""
        return not self._waiting or self._first().session.adapter is step.session.adapter

    def _first(self) -> _Step:
        return min(self._waiting, key=lambda step: step.rank)

    def _patience_s(self) -> float:
        """How long the steps that came shall wait for those that are expected."""
        alike = {session for session in self._expected if session.adapter is self._first().session.adapter}
        if alike <= {step.session for step in self._waiting} or len(self._waiting) >= MOST:
            return 0.0
        return self._since + max(_LEAST_PATIENCE_S, _PATIENCE * self._run_s) - time.perf_counter()

    def _gathered(self, step: _Step) -> list[_Step]:
        """The steps of the next run, which the caller of `step` leads; the others go on waiting."""
        self._taken.add(_KV)
        self._runs += 1
        others = (other for other in self._waiting if other is not step)
        alike = [other for other in others if other.session.adapter is step.session.adapter]
        together = [step, *sorted(alike, key=lambda other: other.rank)[: MOST - 1]]
        self._waiting = [other for other in self._waiting if other not in together]
        self._since = time.perf_counter()
        return together

    def _lead(self, together: list[_Step]) -> None:
        """Runs the steps, and tells those who wait for them."""
        started = time.perf_counter()
        try:
            if len(together) == 1:
                self._check_room(together[0].session, 1)
                together[0].session.run_alone(together[0].token)
                together[0].is_done = True
            else:
                self._run_together(together)
            self._let_go({step.session for step in together})
        except Exception as error:  # noqa: BLE001  # every thread that waits raises it
            for step in together:
                if not step.is_done:
                    step.error, step.is_done = error, True
        finally:
            with self._changed:
                # after a KeyboardInterrupt, which is of this thread alone, the others run again
                self._waiting = [step for step in together[1:] if not step.is_done] + self._waiting
                self._expected = {step.session for step in together}
                ended = time.perf_counter()
                self._run_s = ended - started
                recently = ended - self._idle_s()
                lately = {other: at for other, at in self._stepped.items() if at > recently}
                self._stepped = lately | dict.fromkeys(self._expected, ended)
                self._count(ended)
                self._taken.remove(_KV)
                self._changed.notify_all()

    def _run_together(self, together: Sequence[_Step]) -> None:
        tokens = {step.session: step.token for step in together}
        for session in tokens:
            if len(self._members) == MOST and session not in self._members:
                away = [member for member in self._members if member not in tokens]
                self._leave(max(away, key=lambda member: self._missed.get(member, 0)))
            self._join(session)
        for session in [other for other in self._members if other not in tokens and other.position >= self._capacity]:
            self._leave(session)  # it has no room past its end
        # what lies between takes part with any token: what it writes past the end of its sequence is written again
        places = sorted(self._members.index(session) for session in tokens)
        first, end = places[0], places[-1] + 1
        rows = self._members[first:end]
        logits = self._run(
            {name: shared[first:end] for name, shared in self._kv.items()},
            np.array([[tokens.get(session, 0)] for session in rows], np.int64),
            [session.position for session in rows],
            together[0].session.adapter,
            [session if session in tokens else None for session in rows],
        )
        for step in together:
            session = step.session
            if session.is_stopping:
                step.error = Interrupted()
            else:
                session.logits[...] = logits[rows.index(session)]
                session.position += 1
            step.is_done = True

    def _join(self, session: Member) -> None:
        """Moves a session's KV to a slot, and makes room for one more token of it."""
        slots = len(next(iter(self._kv.values()))) if self._kv else 0
        is_new = session not in self._members
        if session.position >= self._capacity or (is_new and len(self._members) == slots):
            needed = max(session.position + 1, min(session.position * 3 // 2, self._context), self._capacity)
            capacity = min(-(-needed // _STEP) * _STEP, self._context)
            self._resize(session, min(max(slots, 2 * len(self._members), 2), MOST), capacity)
        if is_new:
            self._move(session, len(self._members))
            self._members.append(session)

    def _resize(self, session: Member, slots: int, capacity: int) -> None:
        """Larger buffers, one by one, so that only one is there twice."""
        self._run.release()
        self._capacity = capacity
        for name, old in session.kv.items():
            shape = (slots, old.shape[1], capacity, old.shape[3])
            shared = empty_rows(shape, old.dtype, is_windowed=session.retention.is_windowed(name))
            for slot, member in enumerate(self._members):
                move_rows(name, member, shared[slot : slot + 1])
                member.hold({name: shared[slot : slot + 1]}, capacity)
            self._kv[name] = shared

    def _move(self, session: Member, slot: int) -> None:
        """Copies what a session holds to a slot."""
        for name, shared in self._kv.items():
            move_rows(name, session, shared[slot : slot + 1])
        session.hold({name: shared[slot : slot + 1] for name, shared in self._kv.items()}, self._capacity)

    def _check_room(self, session: Member, count: int) -> None:
        """A session that outgrows the shared buffers by itself leaves them."""
        if session.position + count > self._capacity:
            self._let_go_of(session, room=count)

    def _let_go_of(self, session: Member, *, room: int) -> None:
        if session in self._members:
            self._leave(session, room=room)

    def _let_go(self, came: set[Member]) -> None:
        """Gives sessions that stayed away buffers of their own; the last one too, when it is alone."""
        turns = len({member.adapter for member in self._members})
        for session in list(self._members):
            self._missed[session] = 0 if session in came else self._missed.get(session, 0) + 1
            if self._missed[session] > _MISSED * turns:
                self._leave(session)
        if len(self._members) == 1:
            self._leave(self._members[0])

    def _leave(self, session: Member, *, room: int = 1, is_kept: bool = True) -> None:
        """Gives a session buffers of its own, with room for more tokens, and its slot to the last one."""
        held = session.position
        capacity = min(-(-(held + room) // _STEP) * _STEP, self._context)
        for name, shared in list(session.kv.items()) if is_kept else ():
            shape = (1, shared.shape[1], capacity, shared.shape[3])
            own = empty_rows(shape, shared.dtype, is_windowed=session.retention.is_windowed(name))
            move_rows(name, session, own)
            session.hold({name: own}, capacity)
        slot, last = self._members.index(session), self._members[-1]
        self._missed.pop(session, None)
        self._members[slot] = last  # before it goes from its place: apart() asks for members without a lock
        self._members.pop()
        if last is not session:
            self._move(last, slot)
        if not self._members:
            self._run.release()
            self._kv, self._capacity = {}, 0
