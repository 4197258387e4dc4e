"""The engine loop: one thread a device owns its runtime; callers enqueue and read.

As vLLM, llama.cpp's server and ExLlamaV3 have it. Runtimes keep captured graphs and handles a thread, and sequences
that are fed from several threads take turns at best. So every call of an engine or a session is made in the loop's
thread: a caller's thread may be short-lived, be interrupted, or be one of hundreds. Standard library only.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

from embedllm.cancel import Cancel
from embedllm.errors import DeviceError
from embedllm.files.native_calls import END_S, ENDING, end_calls

T = TypeVar("T")
Work: TypeAlias = Callable[[], object]
_WAKE_S = 0.25  # in which a caller that waits looks whether the loop is still there, and Windows for its Ctrl-C
_SERVE_S = 0.001  # the same for a loop
_IDLE_S = 3600.0  # at most, to the next look for timeouts: a queue takes no number of seconds beyond some millions
_log = logging.getLogger("embedllm")


class LoopTask(Protocol):
    """What a loop runs: a scheduler."""

    def step(self, beside: int = 0) -> bool:
        """Runs one iteration; False when there was nothing to do. beside: replies that the others decode."""
        ...

    def decoding(self) -> int:
        """Replies that are decoded, token by token."""
        ...

    def cancel_all(self) -> None:
        """Ends all that waits and runs at its next step; from any thread."""
        ...

    def fail_all(self, cause: Exception) -> None:
        """Ends all that waits and runs: each raises a DeviceError of that cause."""
        ...

    def finish(self) -> None:
        """Does what could wait until now."""
        ...

    def idle_s(self) -> float | None:
        """Seconds until something has to be done though nobody asks, such as a timeout; None: never."""
        ...


class CallerThread:
    """In place of a loop where there are no threads: whoever calls does the work, in the thread that has made this."""

    def __init__(self) -> None:
        self._owner = os.getpid(), threading.get_ident()

    def check_process(self) -> None:
        """Raises DeviceError in another thread, or in a process that was forked since."""
        if (os.getpid(), threading.get_ident()) != self._owner:
            raise DeviceError(
                "this model was loaded with threaded=False in another thread or process, and computes there only. "
                "Call it from there, or load it with threaded=True."
            )

    def call(self, work: Callable[[], T]) -> T:
        self.check_process()
        return work()

    def post(self, work: Work) -> None:
        work()

    def when_dropped(self, owner: object, work: Work) -> None:
        weakref.finalize(owner, work).atexit = False


class _Dropped(weakref.ref[Any]):
    """What the loop does once an object is gone.

    A KeyboardInterrupt can end a finalizer that is written in Python, in its middle. The callback of this one is the
    inbox's put(), which is written in C; the rest is done in the loop's thread, which no interrupt reaches.
    """

    __slots__ = ("work",)
    work: Work

    def __call__(self) -> None:
        _DROPPED.pop(id(self), None)
        self.work()


class EngineLoop:
    """The thread of one device, which all models on it share. It ends when nobody holds this object any more."""

    def __init__(self, name: str) -> None:
        """name: of the device."""
        self._pid = os.getpid()
        self._tasks: list[LoopTask] = []
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()  # put() is reentrant: finalizers and signal handlers may
        self._ended = threading.Event()  # Thread.is_alive() is wrong for good once it is interrupted
        self._thread = threading.Thread(
            target=_run, args=(self._inbox, self._tasks, self._ended), name=f"embedllm-{name}", daemon=True
        )
        weakref.finalize(self, self._inbox.put, None)
        self._thread.start()
        _ALL.add(self)

    @staticmethod
    def of(name: str) -> EngineLoop:
        """The loop of a device by its name; a new one where there is none."""
        with _LOCK:
            loop = _BY_DEVICE.get(name)
            if loop is None or not loop.is_alive:
                loop = _BY_DEVICE[name] = EngineLoop(name)
            return loop

    @property
    def is_alive(self) -> bool:
        return self._pid == os.getpid() and not self._ended.is_set()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the loop's own thread."""
        return threading.get_ident() == self._thread.ident

    def host(self, scheduler: LoopTask) -> None:
        self.call(lambda: self._tasks.append(scheduler))

    def leave(self, scheduler: LoopTask) -> None:
        """Runs it no more. In the loop's thread."""
        if scheduler in self._tasks:
            self._tasks.remove(scheduler)

    def post(self, work: Work) -> None:
        """Has the loop do this between two iterations; what it raises is logged. From any thread, finalizers too."""
        self._inbox.put(work)

    def when_dropped(self, owner: object, work: Work) -> None:
        """As post(), once nobody holds `owner` any more, which `work` must not hold. No interrupt prevents it."""
        dropped = _Dropped(owner, self._inbox.put)  # type: ignore[arg-type]  # it is put as work, which it is
        dropped.work = work
        _DROPPED[id(dropped)] = dropped

    def wake(self) -> None:
        """Has the loop look for what changed."""
        self._inbox.put(_nothing)

    def call(self, work: Callable[[], T]) -> T:
        """What `work` gives, done by the loop between two iterations; raises what it raises.

        Raises DeviceError in a process that was forked since, or that is ending.
        """
        self.check_process()
        if self.is_current:
            return work()
        answer: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answer.put((work(), None))
            except BaseException as error:  # noqa: BLE001  # the caller's
                answer.put((None, error))

        self._inbox.put(run)
        value, error = self.wait(answer)
        if error is not None:
            try:
                raise error
            finally:
                del error, answer  # the traceback holds this frame
        return value  # type: ignore[return-value]  # as `work` gave it

    def wait(self, queue: SimpleQueue[T], *, iterates: bool = False) -> T:
        """The next item of a queue that the loop fills. Raises DeviceError when the loop has ended.

        iterates: the thread of another loop, whose step has called this, runs iterations meanwhile, and not only what
        was posted: a request's own code waits, whose request is out of their way.
        """
        if self.is_current:  # called by what a step calls: a logits processor, say
            while queue.empty():
                if not _turn(self._inbox, self._tasks):
                    self._inbox.put(None)  # for the outer one
                    raise DeviceError(ENDING)
            return queue.get()
        other = _HERE.loop  # a loop that waits for another one, of a draft model's device, serves who waits for it
        while True:
            try:
                return queue.get(timeout=_WAKE_S if other is None else _SERVE_S)
            except Empty:
                if other is not None and iterates and not _turn(other, _HERE.tasks, waits=False):
                    other.put(None)  # for the outer one
                    raise DeviceError(ENDING) from None
                if other is not None:
                    _serve(other)
                if not self.is_alive and queue.empty():
                    self.check_process()

    def check_process(self) -> None:
        """Raises DeviceError in a process that was forked after the model was loaded, or that is ending."""
        if self._pid != os.getpid():
            raise DeviceError(
                "this model was loaded before os.fork(), and its threads are not in the child. Load it in the child, "
                "or start processes by multiprocessing's 'spawn' or 'forkserver'."
            )
        if self._ended.is_set():
            raise DeviceError(ENDING)

    def end(self) -> None:
        """Ends the thread after the step that runs, which is interrupted where it can be."""
        if self._pid != os.getpid():  # it is not there
            return
        for scheduler in [*self._tasks]:
            scheduler.cancel_all()
        self._inbox.put(None)
        if self.is_alive and not self.is_current:
            self._ended.wait(END_S)

    def keep_for_ever(self) -> None:
        """In a forked child: never frees what runtimes hold, since they would wait for threads that are not there."""
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._tasks))


class Ticket:
    """A caller's hold of a request: leaving or dropping it, for whatever reason, ends the request."""

    def __init__(self, loop: EngineLoop, cancel: Cancel) -> None:
        """cancel: of this request alone."""
        self._loop = loop
        self._cancel = cancel
        loop.when_dropped(self, cancel.cancel)  # where a KeyboardInterrupt came before whoever had it could leave it

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop.is_alive:  # in a forked process nothing runs that could be ended
            self._cancel.cancel()


class _Here(threading.local):
    loop: SimpleQueue[Work | None] | None = None  # the inbox of the loop whose thread this is
    tasks: Sequence[LoopTask] = ()  # its


_HERE = _Here()
_LOCK = threading.Lock()
_DROPPED: dict[int, _Dropped] = {}  # by id: a weak reference has the hash of what it is to
_BY_DEVICE: weakref.WeakValueDictionary[str, EngineLoop] = weakref.WeakValueDictionary()
_ALL: weakref.WeakSet[EngineLoop] = weakref.WeakSet()


def _run(inbox: SimpleQueue[Work | None], tasks: list[LoopTask], ended: threading.Event) -> None:
    """What the thread does. It holds no EngineLoop, so that one that nobody uses goes, and ends it."""
    _HERE.loop, _HERE.tasks = inbox, tasks
    try:
        while _turn(inbox, tasks):
            pass
        for scheduler in [*tasks]:
            scheduler.step()  # what was cancelled by the end
            scheduler.finish()
    finally:
        ended.set()


def _turn(inbox: SimpleQueue[Work | None], tasks: Sequence[LoopTask], *, waits: bool = True) -> bool:
    """One iteration of each scheduler, then what was posted; waits for that when there was nothing else to do.

    waits: False: it does not. False at the end.
    """
    is_busy = False
    for scheduler in [*tasks]:
        try:
            beside = sum(other.decoding() for other in tasks if other is not scheduler)
            is_busy |= scheduler.step(beside)
        except Exception as error:  # noqa: BLE001  # a defect of ours: those who wait must not wait for ever
            _log.exception("the engine loop failed; every request that it had raises DeviceError")
            scheduler.fail_all(error)
            is_busy = True
    waits_s = [idle_s for scheduler in tasks if (idle_s := scheduler.idle_s()) is not None]
    idle_s = min([*waits_s, _IDLE_S]) if waits_s else None
    try:
        while (work := inbox.get(block=waits and not is_busy, timeout=idle_s)) is not None:
            is_busy = True
            _do(work)
            del work  # before it waits: it may hold a model
    except Empty:
        return True
    return False


def _serve(inbox: SimpleQueue[Work | None]) -> None:
    """Does what was posted, and no iteration."""
    while not inbox.empty():
        if (work := inbox.get()) is None:
            inbox.put(None)
            return
        _do(work)


def _do(work: Work) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  # of a finalizer, which nobody waits for
        _log.warning("what was left to the engine loop failed: %s", error)


def _nothing() -> None:
    """What wakes the loop, and no more."""


def _end_all() -> None:
    end_calls()  # first: a load makes a loop
    for loop in [*_ALL]:
        loop.end()


def _after_fork_in_child() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    for loop in [*_ALL]:
        loop.keep_for_ever()
    _BY_DEVICE.clear()


atexit.register(_end_all)
if sys.platform not in ("win32", "emscripten"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
