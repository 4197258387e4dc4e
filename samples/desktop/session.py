"""What the window asks of the model's thread. Every call comes back at once; answers are events."""

from __future__ import annotations

from collections.abc import Callable

import embedllm

from .chat import Chat
from .core import ModelThread
from .events import Ended, Loaded
from .store import Entry, Store


class Session:
    """The thread and its jobs, by the names that Ended tells.

    tell: called with events in that thread, so it must only hand them on.
    """

    def __init__(self, store: Store, tell: Callable[[object], object]) -> None:
        self._tell = tell
        self._thread = ModelThread(self._pass_on)
        self._chat = Chat(self._thread, store)
        self._do("begin", lambda cancel: self._chat.begin())

    def find_devices(self) -> None:
        self._do("find", lambda cancel: self._chat.find_devices())

    def load(self, path: str, device: str | None) -> None:
        self._do("load", lambda cancel: self._chat.load(path, device))

    def open(self, entry: Entry) -> None:
        self._do("open", lambda cancel: self._chat.open(entry))

    def say(self, text: str) -> None:
        self._do("reply", lambda cancel: self._chat.say(text, cancel))

    def regenerate(self) -> None:
        self._do("reply", self._chat.regenerate)

    def rename(self, entry: Entry) -> None:
        self._do("rename", lambda cancel: self._chat.rename(entry.id, entry.title))

    def delete(self, name: str) -> None:
        self._do("delete", lambda cancel: self._chat.delete(name))

    def fill(self, text: str, schema: str) -> None:
        self._do("fill", lambda cancel: self._chat.fill(text, schema, cancel))

    def use_tools(self, text: str) -> None:
        self._do("tools", lambda cancel: self._chat.use_tools(text, cancel))

    def stop(self) -> None:
        self._thread.stop()

    def close(self) -> None:
        """Ends what runs, keeps the conversation, frees the model. None is told at the end."""
        self.stop()
        self._do("keep", lambda cancel: self._chat.keep())
        self._thread.close()

    def join(self) -> None:
        self._thread.join()

    def _do(self, name: str, job: Callable[[embedllm.Cancel], object]) -> None:
        def run(cancel: embedllm.Cancel) -> None:
            try:
                job(cancel)
            finally:
                self._tell(Ended(name))

        self._thread.do(run)

    def _pass_on(self, event: object) -> None:
        """In the model's thread: a model becomes what the window shows of it."""
        if isinstance(event, embedllm.Model):
            event = Loaded(
                name=event.name, device=event.device, context=event.context, memory=str(event.memory or "not told")
            )
        self._tell(event)
