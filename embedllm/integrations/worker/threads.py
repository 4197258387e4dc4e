"""The threads of `embedllm worker`: one that writes, and lanes that do one job after the other."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from embedllm.cancel import Cancel
from embedllm.integrations.worker.protocol import BUSY, INVALID_REQUEST, Id, RpcError, encode

_UNWRITTEN = 1024  # messages that wait for the host to read before whoever sends the next one waits too


class Output:
    """Writes messages, in a thread, so that a host that is slow to read does not hold up what is read from it."""

    def __init__(self, write: Callable[[bytes], None], on_closed: Callable[[], None]) -> None:
        self._write = write
        self._on_closed = on_closed
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_UNWRITTEN)
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, object]) -> None:
        """Sends one message; from any thread. After the host closed its end it goes nowhere."""
        self._waiting.put(encode(message))

    def close(self, timeout_s: float) -> bool:
        """Waits until all is written; whether it was."""
        try:
            self._waiting.put(None, timeout=timeout_s)
        except queue.Full:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_open = True
        while (line := self._waiting.get()) is not None:
            try:
                if is_open:
                    self._write(line)
            except OSError:  # a broken pipe, under the names that systems have for it
                is_open = False  # what still comes is taken and dropped, so that no sender waits for ever
                self._on_closed()


@dataclass(eq=False, slots=True, kw_only=True)
class Job:
    """A request that takes long.

    run: does it and gives the answer; returns at once when `cancel` is set already.
    """

    id: Id
    run: Callable[[Job], Mapping[str, object]]
    cancel: Cancel = field(default_factory=Cancel)


class Lane:
    """Does jobs one after the other in a thread of its own and sends their answers; a limited number may wait."""

    def __init__(self, name: str, send: Callable[[Mapping[str, object]], None], *, limit: int) -> None:
        self._send = send
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, job: Job) -> None:
        """Raises RpcError when too many wait."""
        with self._changed:
            if len(self._waiting) >= self._limit:
                raise RpcError(BUSY, f"{len(self._waiting)} requests wait already, the most that may. Send it later.")
            self._waiting.append(job)
            self._changed.notify()

    def check_new(self, id: Id) -> None:
        """Raises RpcError when a request with this id runs or waits."""
        with self._changed:
            if any(job.id == id for job in self._jobs()):
                raise RpcError(INVALID_REQUEST, f"the request with id {id!r} is not answered yet. Give each its own.")

    def cancel(self, id: Id) -> bool:
        """Ends a job that runs or waits; whether there is such a one."""
        with self._changed:
            target = next((job for job in self._jobs() if job.id == id), None)
            is_waiting = target in self._waiting
            if target is not None and is_waiting:
                self._waiting.remove(target)
        if target is None:
            return False
        target.cancel.cancel()
        if is_waiting:
            self._send(target.run(target))  # its turn need not come for that
        return True

    def end(self) -> int:
        """Cancels the job that runs and all that wait, and takes no more; join() waits for that. How many they were."""
        with self._changed:
            self._is_ended = True
            for job in self._jobs():
                job.cancel.cancel()
            self._changed.notify()
            return len(self._jobs())

    def join(self, timeout_s: float) -> bool:
        """Whether all is done."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _jobs(self) -> list[Job]:
        return [*([] if self._running is None else [self._running]), *self._waiting]

    def _run(self) -> None:
        while (job := self._next()) is not None:
            answer = job.run(job)
            with self._changed:
                self._running = None  # before the answer, after which the host may use the id again
            self._send(answer)

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ended)
            self._running = self._waiting.popleft() if self._waiting else None
            return self._running
