"""The core of an application: a model in a thread of its own. docs/guide-embed.md shows and explains these lines."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import embedllm

FAILURES = (embedllm.EmbedError, OSError, ValueError)  # what a job may meet; anything else is a mistake in this program


class ModelThread:
    """A thread that has the model and the conversation, and does one job after the other.

    tell: called in that thread with a Model when it is loaded, with Progress while it is downloaded or exported first,
    with Chunks, with errors, and with None at the end.
    """

    def __init__(self, tell: Callable[[object], None]) -> None:
        self.llm: embedllm.Model | None = None  # this and the conversation: for jobs only
        self.talk: embedllm.Conversation | None = None
        self.tell = tell
        self._cancel = embedllm.Cancel()
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)  # an exit does not wait
        self._thread.start()

    def do(self, job: Callable[[embedllm.Cancel], object]) -> None:
        """Does a job after those before it; comes back at once. stop() sets the switch that the job is given."""
        cancel = self._cancel
        self._jobs.put(lambda: job(cancel))

    def stop(self) -> None:
        """Ends the reply that is coming, in the middle of a prompt too; jobs that still wait begin cancelled."""
        self._cancel.cancel()
        self._cancel = embedllm.Cancel()

    def close(self) -> None:
        """Stops, does what still waits, and frees the model; comes back at once, and None is told when it is done."""
        self.stop()
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join()

    def load(self, path: str, device: str | None = None) -> None:
        """A job: takes a model in place of the one before, and begins a conversation with it."""
        if self.llm is not None:
            self.llm.close()  # first: both together may not fit into the memory
            self.llm = self.talk = None
        self.llm = embedllm.load(path, device=device, on_progress=self.tell)
        self.talk = self.llm.conversation()
        self.tell(self.llm)

    def say(self, text: str, cancel: embedllm.Cancel, sampling: embedllm.Sampling | None = None) -> None:
        """A job: tells the reply in chunks. What was said is in self.talk.messages then."""
        if self.talk is None:
            raise ValueError("no model is loaded; load one first.")
        for chunk in self.talk.stream(text, sampling, cancel=cancel):
            self.tell(chunk)

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    job()
                except FAILURES as error:
                    self.tell(error)
        finally:
            if self.llm is not None:
                self.llm.close()
            self.tell(None)
