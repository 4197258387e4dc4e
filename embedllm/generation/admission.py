"""Admission: at most N requests run simultaneously, the others wait in a queue or are rejected. Standard library only.

A request has a slot from its first step to its end. When its consumer pauses between two chunks, the request is
preempted: immediately when the consumer's own thread or task is the one that waits, otherwise after it was idle for
_IDLE_S while others wait. An event loop that does not fetch a computed chunk, or a slot granted to one of its tasks,
counts as a pause too. So nested threads, tasks and tools that call the model cannot deadlock; a preempted request
waits for a slot again before its next step.
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
    from embedllm.backends.base import Engine, MemoryEstimate
    from embedllm.cancel import Cancel

MAX_WAITING = 1024  # requests; each costs its prompt and a thread or a task
DEFAULT_SEQUENCES = 16  # requests that run simultaneously
_MAX_SEQUENCES = 256  # the same where there is much memory
_IDLE_S = 1.0  # of a consumer, after which its request is preempted
_thread_ids, _local = count(1), threading.local()


class Slots:
    """The slots of a model, and the queue for them. Used from any thread."""

    def __init__(
        self,
        max_running: int = DEFAULT_SEQUENCES,
        max_waiting: int = MAX_WAITING,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.clock = clock
        self._lock = threading.RLock()  # the garbage collector may release a slot in the thread that has the lock
        self._running: set[Slot] = set()
        self._queue: list[Slot] = []  # in the order in which they are served
        self._head: Slot | None = None  # of the queue, as it was last notified: it looks for idle consumers
        self._is_closed = False

    @property
    def running(self) -> int:
        """Requests that have a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._queue)

    def close(self) -> None:
        """Ends all waiting requests as cancelled; later ones do not wait."""
        with self._lock:
            self._is_closed = True
            waiting, self._queue = self._queue, []
        for slot in waiting:
            slot.is_ended = True
            slot.wake()

    def request(self, slot: Slot) -> bool:
        """Whether the slot is granted immediately; otherwise it is queued. Raises Busy when the queue is full."""
        with self._lock:
            if self._is_closed:
                return True
            if len(self._running) < self.max_running and not self._queue:
                slot.is_preempted = False
                self._running.add(slot)
                return True
            if len(self._running) >= self.max_running:
                self._preempt([running for running in list(self._running) if running.is_blocked_by(slot)])
            new = [other for other in self._queue if other.is_rejectable]
            if len(self._running) >= self.max_running and slot.is_rejectable and len(new) >= self.max_waiting:
                raise Busy(
                    f"the queue is full: {len(self._running)} requests run and {len(new)} wait. Try again later, or "
                    "load the model with larger max_sequences and max_waiting.",
                    running=len(self._running),
                    waiting=len(new),
                )
            self._enqueue(slot)
            self._grant()
            return self._mark_granted(slot)

    def is_granted(self, slot: Slot) -> bool:
        """Whether a requested slot is granted by now. Preempts requests whose consumers are idle."""
        with self._lock:
            now = self.clock()
            if slot not in self._running:
                if slot.is_preempted and slot not in self._queue and not slot.is_ended:
                    self._enqueue(slot)  # preempted between its grant and now
                self._preempt([running for running in list(self._running) if now - running.idle_since >= _IDLE_S])
                self._grant()
            return self._mark_granted(slot)

    def is_first(self, slot: Slot) -> bool:
        """Whether it is the next to be served."""
        return self._head is slot

    def mark_busy(self, slot: Slot) -> bool:
        """Notes that the consumer of a slot is no longer idle; whether it still has the slot."""
        with self._lock:
            slot.idle_since = math.inf
            return not slot.is_preempted

    def release(self, slot: Slot) -> None:
        with self._lock:
            self._running.discard(slot)
            if slot in self._queue:
                self._queue.remove(slot)
            self._grant()

    def _enqueue(self, slot: Slot) -> None:
        insort(self._queue, slot, key=lambda one: one.rank)

    def _mark_granted(self, slot: Slot) -> bool:
        """Whether a slot is granted; its consumer is not idle then."""
        if slot not in self._running:
            return False
        slot.idle_since = math.inf
        return True

    def _preempt(self, slots: list[Slot]) -> None:
        for slot in slots:
            slot.is_preempted = True
            self._running.discard(slot)

    def _grant(self) -> None:
        """Gives free slots to the head of the queue."""
        while (first := self._next()) is not None and len(self._running) < self.max_running:
            self._queue.remove(first)
            if first.wake():
                first.is_preempted = False
                first.idle_since = self.clock() if first.task else math.inf  # its event loop may be blocked
                self._running.add(first)
        if first is not self._head and first is not None:
            first.wake()
        self._head = first

    def _next(self) -> Slot | None:
        """The first of the queue that is not blocked; a thread that waits blocks the tasks of its event loop."""
        blocked = {slot.thread for slot in self._queue if slot.task == 0}
        return next((slot for slot in self._queue if slot.task == 0 or slot.thread not in blocked), None)


class Slot:
    """The slot of one request: requested, waited for, granted, preempted and released."""

    def __init__(self, slots: Slots, priority: int = 0, *, is_rejectable: bool = True) -> None:
        """priority: lower ones are served earlier; see PRIORITY_S."""
        self.rank = 0.0  # lower ones are served earlier
        self.queued_s = 0.0  # waited so far
        self.is_rejectable = is_rejectable  # by a full queue
        self.is_preempted = False  # the consumer was idle; the slot is requested again when it comes back
        self.is_ended = False  # by the end of the model
        self.idle_since = math.inf  # when the consumer got the last chunk
        self.wake: Callable[[], bool] = lambda: True  # tells the waiting thread or task to check; False: it is gone
        self._slots = slots
        self._priority = priority
        self.thread, self.task = _current_caller()  # that drives the request; task 0: none, or all while it waits

    def is_blocked_by(self, other: Slot) -> bool:
        """Whether this request cannot continue as long as another waits.

        A thread that waits blocks all that it drives, and the tasks of its event loop; a task only what it drives.
        """
        return self.thread == other.thread and other.task in (0, self.task)

    def acquire(self, cancel: Cancel) -> None:
        """Waits for the slot in this thread. Raises Busy; Interrupted when it is cancelled or the model closed."""
        woken: SimpleQueue[None] = SimpleQueue()  # a signal handler may put into it

        def wake() -> bool:
            woken.put(None)
            return True

        with self._requested(wake, cancel, is_task=False) as is_granted:
            while not (is_granted or self._check_granted(cancel)):
                with suppress(Empty):
                    woken.get(timeout=_IDLE_S if self._slots.is_first(self) else None)

    async def aacquire(self, cancel: Cancel) -> None:
        """As acquire(), without blocking the event loop."""
        import asyncio  # only asynchronous callers need it

        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> bool:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(woken.set)
                return True
            return False

        with self._requested(wake, cancel, is_task=True) as is_granted:
            while not (is_granted or self._check_granted(cancel)):
                timer = loop.call_later(_IDLE_S, woken.set) if self._slots.is_first(self) else None
                try:
                    await woken.wait()
                finally:
                    if timer is not None:
                        timer.cancel()
                woken.clear()

    def mark_idle(self) -> None:
        """The consumer has a chunk: until reacquire() the request may be preempted."""
        self.idle_since = self._slots.clock()

    def mark_busy(self) -> None:
        """Its event loop has fetched the computed chunk: until the next chunk the request is not preempted."""
        self.idle_since = math.inf

    def reacquire(self, cancel: Cancel) -> None:
        """The consumer wants the next chunk: after a preemption waits for a slot again, unless it is cancelled."""
        self.thread, self.task = _current_caller()
        if not self._slots.mark_busy(self):
            with suppress(Interrupted):  # the next step raises it, too
                self.acquire(cancel)

    async def areacquire(self, cancel: Cancel) -> None:
        """As reacquire(), without blocking the event loop."""
        self.thread, self.task = _current_caller()
        if not self._slots.mark_busy(self):
            with suppress(Interrupted):
                await self.aacquire(cancel)

    def release(self) -> None:
        """The request is done or abandoned. May be called twice."""
        self.is_ended = True
        self._slots.release(self)
        self.is_preempted = False
        self.wake()

    @contextmanager
    def _requested(self, wake: Callable[[], bool], cancel: Cancel, *, is_task: bool) -> Iterator[bool]:
        """Within the block the slot is requested; gives whether it is granted already."""
        began = self._slots.clock()
        self.wake = wake
        self.thread, self.task = _current_caller()
        if not is_task:
            self.task = 0
        # a preempted request has KV already, and goes first
        self.rank = began + self._priority * PRIORITY_S if not self.is_preempted else -math.inf
        self.is_rejectable = self.is_rejectable and not self.is_preempted
        if self._slots.request(self):
            self.thread, self.task = _current_caller()
            yield True
            return
        try:
            with cancel.watching(self._wake_if):
                yield False
        except BaseException:
            self._slots.release(self)
            raise
        finally:
            self.queued_s += self._slots.clock() - began
            self.thread, self.task = _current_caller()

    def _wake_if(self, stop: bool) -> None:
        if stop:
            self.wake()

    def _check_granted(self, cancel: Cancel) -> bool:
        """Raises Interrupted when it is no longer needed."""
        if self._slots.is_granted(self):
            return True
        if cancel.cancelled or self.is_ended:
            raise Interrupted
        return False


def _current_caller() -> tuple[int, int]:
    """The current thread and the current task of an event loop; 0: no task."""
    task = None
    if (asyncio := sys.modules.get("asyncio")) is not None:
        with suppress(RuntimeError, AttributeError):  # no event loop runs in this thread, or it is being imported
            task = asyncio.current_task()
    if not hasattr(_local, "thread"):
        _local.thread = next(_thread_ids)  # not its ident, which a later thread may get again
    return _local.thread, 0 if task is None else id(task)


def check_concurrency(max_sequences: int | None, max_waiting: int | None) -> None:
    """Raises ValueError for values out of range and for what is no whole number."""
    for name, value, least in (("max_sequences", max_sequences, 1), ("max_waiting", max_waiting, 0)):
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"{name} is {value!r}; expected a whole number from {least} on, or None.")


def make_slots(
    memory: MemoryEstimate | None, engine: Engine, max_sequences: int | None, max_waiting: int | None
) -> Slots:
    """Slots for max_sequences requests; None: as many as have memory for the KV of a whole context.

    At least as many as the engine runs in one step.
    """
    if max_sequences is None:
        max_sequences = max(_sequences_that_fit(memory), best_parallel(engine))
    return Slots(max_sequences, MAX_WAITING if max_waiting is None else max_waiting)


def _sequences_that_fit(memory: MemoryEstimate | None) -> int:
    if memory is None or memory.free_bytes is None:
        return DEFAULT_SEQUENCES
    more = (memory.free_bytes - memory.needed_bytes) // max(memory.kv_bytes + memory.scratch_bytes, 1)
    return min(max(1 + more, DEFAULT_SEQUENCES), _MAX_SEQUENCES)
