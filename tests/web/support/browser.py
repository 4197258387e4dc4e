"""A real Chromium for tests: pages that are driven from Python, through Node and playwright-core (driver.mjs)."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.web.support.calls import PATIENCE_S, awaited, browser_error
from tests.web.support.found import headless_shell, missing, node, node_modules
from tests.web.support.page import Context

NODE = Path(__file__).parents[1] / "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the driver said unasked; kind as in driver.mjs."""

    kind: str
    context: int
    page: int
    text: str


class Browser:
    """Chromium, until close(). Events of all its pages are kept; check() raises for those that no test may have."""

    def __init__(self, shared: Path | None = None) -> None:
        """shared: folder of the run, for what a page finds for those of all processes."""
        self.shared = shared
        if reason := missing():
            raise RuntimeError(reason)
        self._process = subprocess.Popen(
            [str(node()), str(NODE / "driver.mjs"), str(node_modules()), str(headless_shell())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._calls = 0
        self.kept: set[int] = set()  # ids of contexts that outlive a test
        self._events: list[Event] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def context(
        self,
        folder: Path | None = None,
        *,
        args: Sequence[str] = (),
        options: Mapping[str, object] | None = None,
        program: str | None = None,
    ) -> Context:
        """A profile: in a folder, that what pages store is there for the next one, or in memory.

        args, program: more flags for Chromium, and another Chromium (with a folder only); options: Playwright's of a
        context (viewport, locale, ...).
        """
        given = {"folder": None if folder is None else str(folder), "args": list(args), "options": options or {},
                 "program": program}  # fmt: skip
        return Context(self, self.call("context", **given))

    def close_contexts(self) -> None:
        """Closes all that are open and not in `kept`."""
        self.call("closeContexts", but=sorted(self.kept))

    def events(self, kind: str, *, page: int | None = None) -> list[str]:
        """The texts of the events so far."""
        with self._lock:
            return [event.text for event in self._events if event.kind == kind and page in (None, event.page)]

    def check(self) -> None:
        """Raises AssertionError for requests that leave the machine, uncaught errors and crashes since the last call.

        What a test expects of them it takes away first: forget(kind).
        """
        with self._lock:
            wrong = [event for event in self._events if event.kind in ("external", "error", "crash")]
            self._events.clear()
        assert not wrong, "in the browser: " + "; ".join(f"{event.kind}: {event.text}" for event in wrong)

    def forget(self, kind: str) -> None:
        """Drops the events of a kind, because they were expected."""
        with self._lock:
            self._events = [event for event in self._events if event.kind != kind]

    def start(self, do: str, **given: object) -> Future[Any]:
        """Begins a command of driver.mjs; its result comes later."""
        future: Future[Any] = Future()
        with self._lock:
            if self._process.poll() is not None:
                raise RuntimeError(f"the driver of the browser ended with code {self._process.returncode}")
            self._calls += 1
            self._waiting[self._calls] = future
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": self._calls, "do": do, **given}) + "\n")
            self._process.stdin.flush()
        return future

    def call(self, do: str, *, patience_s: float = PATIENCE_S, **given: object) -> Any:  # noqa: ANN401  # any JSON
        """Carries out a command of driver.mjs."""
        return awaited(self.start(do, **given), f"'{do}'", patience_s)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "event" in said:
                event = Event(kind=said["event"], context=said["context"], page=said["page"], text=said["text"])
                with self._lock:
                    self._events.append(event)
                continue
            with self._lock:
                future = self._waiting.pop(said["id"])
            if "error" in said:
                future.set_exception(browser_error(said["error"]))
            else:
                future.set_result(said["value"])
        with self._lock:
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(RuntimeError("the driver of the browser ended"))
