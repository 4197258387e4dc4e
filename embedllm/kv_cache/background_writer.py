"""Work for later, in a thread that is there only while there is some. Standard library only."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger("embedllm")


class BackgroundWriter:
    """Does jobs one after another. The process ends after the last of them."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="embedllm-cache")
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError:  # the process is ending: done here then
                    self._thread = None
                    self._jobs.pop()
                    job()

    def wait(self) -> None:
        """Until no job is left."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception as error:  # noqa: BLE001  # of a device, a closed session, memory: what waits goes on
                _log.info("part of the prefix cache was not written: %s", error)
