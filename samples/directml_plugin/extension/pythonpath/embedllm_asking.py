"""What the worker is asked for one action, in a thread of its own that holds no object of the office.

That matters: Python frees an object of the office (and of a reference cycle, whenever it collects garbage) with its own
lock held, and many of them then wait for the office's lock, which the main thread holds while it waits for Python's.
Seen in LibreOffice 7.4: the office hung for good. So threads hold plain data, and what they have to say goes through
a queue that the main thread empties.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm_actions import Action, request
from embedllm_client import Request, WorkerError
from embedllm_settings import Settings
from embedllm_worker import Worker

DONE, CANCELLED, FAILED = "done", "cancelled", "failed"


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    state: str  # DONE, CANCELLED or FAILED
    text: str = ""  # the reply, or what went wrong
    notice: str = ""  # what the user should know about a reply


@dataclass(frozen=True)
class Piece:
    """Text of the reply."""

    text: str


@dataclass(frozen=True)
class Note:
    """What the worker is doing."""

    text: str


if TYPE_CHECKING:
    Event = Piece | Note | Outcome  # an Outcome comes last


class Asking:
    """One request to the worker. ring: called from its threads when there is something to take."""

    def __init__(self, worker: Worker, action: Action, text: str, ring: Callable[[], None]) -> None:
        self._worker = worker
        self._action = action
        self._text = text
        self._ring = ring
        self._lock = threading.Lock()  # of the three below
        self._events: list[Event] = []
        self._request: Request | None = None
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def start(self, settings: Settings, file: Path) -> None:
        """file: where the settings are, for messages."""
        threading.Thread(target=self._run, args=(settings, file), daemon=True).start()

    def cancel(self) -> None:
        """Ends it soon."""
        with self._lock:
            if self._is_cancelled:
                return
            self._is_cancelled = True
            running = self._request
        if running is not None:
            running.cancel()
        else:  # a model that loads can't be interrupted; its process can be ended. Not here: the office must go on
            threading.Thread(target=self._worker.stop, daemon=True).start()

    def take_events(self) -> list[Event]:
        """All that has come since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def _run(self, settings: Settings, file: Path) -> None:
        self._worker.on_note = lambda text: self._tell(Note(text))
        outcome = Outcome(FAILED, "The worker's answer was not understood; the office's stderr has the details.")
        try:
            outcome = self._ask(settings, file)
        except WorkerError as error:
            outcome = Outcome(CANCELLED) if self._is_cancelled else Outcome(FAILED, str(error))
        finally:
            self._worker.on_note = _drop
            self._tell(outcome)

    def _ask(self, settings: Settings, file: Path) -> Outcome:
        client = self._worker.ready(settings, file)
        method, params = request(self._action, self._text, settings)
        with self._lock:
            if self._is_cancelled:
                return Outcome(CANCELLED)
            self._request = client.request(method, params, on_chunk=lambda text: self._tell(Piece(text)))
        result = self._request.result()
        if self._is_cancelled:
            return Outcome(CANCELLED)
        if not result["text"].strip():
            return Outcome(FAILED, "The model gave no text. The document is as it was.")
        is_cut = bool(self._action.system) and result["finish_reason"] != "stop"
        notice = f"The reply was cut off at {result['tokens']} tokens; 'max_tokens' is in '{file}'." if is_cut else ""
        return Outcome(DONE, result["text"], notice)

    def _tell(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            is_first = len(self._events) == 1
        if is_first:  # the main thread takes all that is there when it comes
            self._ring()


def _drop(text: str) -> None:
    pass
