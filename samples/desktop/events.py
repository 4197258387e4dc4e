"""What the model's thread tells the window, beside the library's own chunks and errors."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import embedllm

from .store import Entry


@dataclass(frozen=True, slots=True)
class Listed:
    """The saved conversations, the last changed first."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user should read."""

    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """The devices of this machine, those that are missing among them."""

    devices: tuple[embedllm.Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model is ready. Plain values: the model itself is the other thread's, which may close it."""

    name: str
    device: embedllm.Device
    context: int
    memory: str


@dataclass(frozen=True, slots=True)
class Opened:
    """From here on chunks and turns are of this conversation."""

    id: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn is over, for better or worse; the conversation as it is now."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Filled:
    """A piece of a structured reply."""

    chunk: embedllm.Chunk


class Question:
    """Asked by the model's thread, which waits for the answer; answered in the window."""

    def __init__(self, call: embedllm.ToolCall) -> None:
        self.call = call
        self._is_answered = threading.Event()
        self._is_allowed = False

    def answer(self, is_allowed: bool) -> None:
        self._is_allowed = is_allowed
        self._is_answered.set()

    def wait(self, cancel: embedllm.Cancel) -> bool:
        """The answer; no when the wait is cancelled."""
        while not cancel.cancelled:
            if self._is_answered.wait(timeout=0.05):
                return self._is_allowed
        return False


@dataclass(frozen=True, slots=True)
class Spoken:
    """A piece of a reply for which there are tools."""

    chunk: embedllm.Chunk


@dataclass(frozen=True, slots=True)
class Ran:
    """A tool ran, or why it did not."""

    outcome: embedllm.ToolOutcome


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of a question that tools were given for."""

    completion: embedllm.Completion


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is done; its error, if it had one, is told next."""

    job: str
