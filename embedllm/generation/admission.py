"""Which replies run: so many at once, the others wait in turn or are refused. Standard library only.

A reply has a place from its first step to its end. One whose consumer pauses between two chunks lends it: at once when
the consumer's own thread or task is what waits, else after a pause of _PAUSE_S while others wait. It is a pause, too,
when an event loop does not come to take what a worker computed, or the place that a task was given. So nobody waits for
a reply that waits for them, however threads, tasks and tools that call the model are nested; who pauses may wait then.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from embedllm.backends.base import PRIORITY_S, Interrupted, best_parallel
from embedllm.errors import Busy

if TYPE_CHECKING:
    from embedllm.backends.base import Engine, Fit
    from embedllm.cancel import Cancel

MOST_WAITING = 1024  # calls; each costs its prompt and a thread or a task
USUAL = 16  # replies at once
_threads, _local = count(1), threading.local()
_PAUSE_S = 1.0  # of a consumer, after which its place is lent


class Places:
    """The places of a model, and who waits for one. Used from any thread."""

    def __init__(
        self, most: int = USUAL, most_waiting: int = MOST_WAITING, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self.most_waiting = most_waiting
        self.clock = clock
        self._lock = threading.RLock()  # a place may be left by the garbage collector, in the thread that has it
        self._held: set[Place] = set()
        self._waiting: list[Place] = []  # in the order in which they are served
        self._first: Place | None = None  # of these, who was told that it is: it looks for pauses
        self._is_closed = False

    @property
    def running(self) -> int:
        """Replies that have a place."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Replies that wait for one."""
        return len(self._waiting)

    def close(self) -> None:
        """Ends all that wait, as cancelled; whoever comes now is not kept waiting."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
        for place in waiting:
            place.is_ended = True
            place.wake()

    def ask(self, place: Place) -> bool:
        """Whether the place is had at once; else it waits. Raises Busy when too many do."""
        with self._lock:
            if self._is_closed:
                return True
            if len(self._held) < self.most and not self._waiting:
                place.is_lent = False
                self._held.add(place)
                return True
            if len(self._held) >= self.most:
                self._lend([held for held in list(self._held) if held.is_stuck_while(place)])
            new = [other for other in self._waiting if other.is_refusable]
            if len(self._held) >= self.most and place.is_refusable and len(new) >= self.most_waiting:
                raise Busy(
                    f"{len(self._held)} replies run and {len(new)} wait, which is all that this model takes. Ask again "
                    "later, or load it with larger max_sequences and max_waiting.",
                    running=len(self._held),
                    waiting=len(new),
                )
            self._queue(place)
            self._serve()
            return self._goes_on(place)

    def has(self, place: Place) -> bool:
        """Whether a place that was asked for is had by now. Lends out what is free after a pause."""
        with self._lock:
            now = self.clock()
            if place not in self._held:
                if place.is_lent and place not in self._waiting and not place.is_ended:
                    self._queue(place)  # lent between its turn and now
                self._lend([held for held in list(self._held) if now - held.rests_since >= _PAUSE_S])
                self._serve()
            return self._goes_on(place)

    def is_first(self, place: Place) -> bool:
        """Whether it is the next to be served."""
        return self._first is place

    def back(self, place: Place) -> bool:
        """Notes that a place rests no more; whether it is still had."""
        with self._lock:
            place.rests_since = math.inf
            return not place.is_lent

    def leave(self, place: Place) -> None:
        with self._lock:
            self._held.discard(place)
            if place in self._waiting:
                self._waiting.remove(place)
            self._serve()

    def _queue(self, place: Place) -> None:
        insort(self._waiting, place, key=lambda one: one.rank)

    def _goes_on(self, place: Place) -> bool:
        """Whether a place is had; whoever asks comes to use it."""
        if place not in self._held:
            return False
        place.rests_since = math.inf
        return True

    def _lend(self, held: list[Place]) -> None:
        for place in held:
            place.is_lent = True
            self._held.discard(place)

    def _serve(self) -> None:
        while (first := self._next()) is not None and len(self._held) < self.most:
            self._waiting.remove(first)
            if first.wake():
                first.is_lent = False
                first.rests_since = self.clock() if first.task else math.inf  # its event loop may be blocked
                self._held.add(first)
        if first is not self._first and first is not None:
            first.wake()
        self._first = first

    def _next(self) -> Place | None:
        """The first that waits and could go on; a thread that waits holds up the tasks of its event loop."""
        blocked = {place.thread for place in self._waiting if place.task == 0}
        return next((place for place in self._waiting if place.task == 0 or place.thread not in blocked), None)


class Place:
    """One reply's place: asked for, waited for, had, lent and left."""

    def __init__(self, among: Places, priority: int = 0, *, is_refusable: bool = True) -> None:
        """priority: lower ones are served earlier; see PRIORITY_S."""
        self.rank = 0.0  # lower ones are served earlier
        self.queued_s = 0.0  # waited so far
        self.is_refusable = is_refusable  # by a full queue
        self.is_lent = False  # another has it until the consumer comes back
        self.is_ended = False  # by the end of the model
        self.rests_since = math.inf  # when the consumer got the last chunk
        self.wake: Callable[[], bool] = lambda: True  # tells whoever waits to look again; False: nobody does any more
        self._among = among
        self._priority = priority
        self.thread, self.task = _user()  # that drives the reply; task 0: none, or all while the thread waits

    def is_stuck_while(self, other: Place) -> bool:
        """Whether the reply cannot go on as long as another waits.

        A thread that waits holds up all that it drives, and the tasks of its event loop; a task only what it drives.
        """
        return self.thread == other.thread and other.task in (0, self.task)

    def enter(self, cancel: Cancel) -> None:
        """Waits for the place, in this thread. Raises Busy; Interrupted when it is cancelled or the model closed."""
        woken: SimpleQueue[None] = SimpleQueue()  # a signal handler may put into it

        def wake() -> bool:
            woken.put(None)
            return True

        with self._asked(wake, cancel, is_task=False) as is_had:
            while not (is_had or self._is_had(cancel)):
                with suppress(Empty):
                    woken.get(timeout=_PAUSE_S if self._among.is_first(self) else None)

    async def aenter(self, cancel: Cancel) -> None:
        """As enter(), without blocking the event loop."""
        import asyncio  # only asynchronous callers need it

        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> bool:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(woken.set)
                return True
            return False

        with self._asked(wake, cancel, is_task=True) as is_had:
            while not (is_had or self._is_had(cancel)):
                timer = loop.call_later(_PAUSE_S, woken.set) if self._among.is_first(self) else None
                try:
                    await woken.wait()
                finally:
                    if timer is not None:
                        timer.cancel()
                woken.clear()

    def rest(self) -> None:
        """The consumer has a chunk: until resume() the place may be lent."""
        self.rests_since = self._among.clock()

    def go_on(self) -> None:
        """Its event loop has taken what was computed: until the next chunk the place is not lent any more."""
        self.rests_since = math.inf

    def resume(self, cancel: Cancel) -> None:
        """The consumer wants the next chunk: waits until a place that was lent is had again, or it is cancelled."""
        self.thread, self.task = _user()
        if not self._among.back(self):
            with suppress(Interrupted):  # the next step sees it, too
                self.enter(cancel)

    async def aresume(self, cancel: Cancel) -> None:
        """As resume(), without blocking the event loop."""
        self.thread, self.task = _user()
        if not self._among.back(self):
            with suppress(Interrupted):
                await self.aenter(cancel)

    def leave(self) -> None:
        """The reply is over, or nobody wants it any more. Twice is fine."""
        self.is_ended = True
        self._among.leave(self)
        self.is_lent = False
        self.wake()

    @contextmanager
    def _asked(self, wake: Callable[[], bool], cancel: Cancel, *, is_task: bool) -> Iterator[bool]:
        """Within the block the place is asked for; gives whether it is had."""
        began = self._among.clock()
        self.wake = wake
        self.thread, self.task = _user()
        if not is_task:
            self.task = 0
        # who comes back has KV already, and goes first
        self.rank = began + self._priority * PRIORITY_S if not self.is_lent else -math.inf
        self.is_refusable = self.is_refusable and not self.is_lent
        if self._among.ask(self):
            self.thread, self.task = _user()
            yield True
            return
        try:
            with cancel.watching(self._wake_if):
                yield False
        except BaseException:
            self._among.leave(self)
            raise
        finally:
            self.queued_s += self._among.clock() - began
            self.thread, self.task = _user()

    def _wake_if(self, stop: bool) -> None:
        if stop:
            self.wake()

    def _is_had(self, cancel: Cancel) -> bool:
        """Raises Interrupted when it need not be had any more."""
        if self._among.has(self):
            return True
        if cancel.cancelled or self.is_ended:
            raise Interrupted
        return False


def _user() -> tuple[int, int]:
    """The thread and the task of an event loop that run now; 0: no task."""
    task = None
    if (asyncio := sys.modules.get("asyncio")) is not None:
        with suppress(RuntimeError, AttributeError):  # no event loop runs in this thread, or it is being imported
            task = asyncio.current_task()
    if not hasattr(_local, "thread"):
        _local.thread = next(_threads)  # not its ident, which a later thread may have again
    return _local.thread, 0 if task is None else id(task)


_MOST = 256  # replies at once, where there is much memory


def check_places(most: int | None, most_waiting: int | None) -> None:
    """Raises ValueError for no place, fewer than none that wait, and what is no whole number."""
    for name, value, least in (("max_sequences", most, 1), ("max_waiting", most_waiting, 0)):
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"{name} is {value!r}; expected a whole number from {least} on, or None.")


def places(memory: Fit | None, engine: Engine, most: int | None, most_waiting: int | None) -> Places:
    """Places for as many replies as were asked for; None: as many as have room for a whole context of KV.

    There are places for those that the engine runs in one step in any case.
    """
    if most is None:
        most = max(_fitting(memory), best_parallel(engine))
    return Places(most, MOST_WAITING if most_waiting is None else most_waiting)


def _fitting(memory: Fit | None) -> int:
    if memory is None or memory.free_bytes is None:
        return USUAL
    more = (memory.free_bytes - memory.needed_bytes) // max(memory.kv_bytes + memory.scratch_bytes, 1)
    return min(max(1 + more, USUAL), _MOST)
