"""The desktop sample's window without a display, for its tests: waited for, typed into, closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator

import pytest
from PySide6.QtCore import QCoreApplication, QEventLoop, Qt, QTimer
from PySide6.QtTest import QTest

import embedllm
from embedllm import Chunk, Conversation
from samples.desktop.window import Window

QUESTION = "how do I extract a tar.gz archive?"
_PATIENCE_S = 120.0  # only ever waited for by a test that fails


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Lets the event loop go on until something is so; fails with its name when it never is."""
    end = time.monotonic() + _PATIENCE_S
    awake = QTimer(interval=5)  # is_so may become true without an event
    awake.start()
    while not is_so():
        assert time.monotonic() < end, f"waited {_PATIENCE_S} s in vain: {what}"
        # not QTest.qWait, which keeps the interpreter to itself: the model's thread would crawl
        QCoreApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)


class Gate:
    """Holds every reply after its first two chunks, until it is opened or the reply is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.samplings: list[embedllm.Sampling | None] = []
        real = Conversation.stream

        def stream(talk: Conversation, text: str, sampling: embedllm.Sampling | None = None, *,
                   cancel: embedllm.Cancel) -> Generator[Chunk, None, None]:  # fmt: skip
            self.samplings.append(sampling)
            for count, chunk in enumerate(real(talk, text, sampling, cancel=cancel)):
                yield chunk
                while count == 1 and not cancel.cancelled and not self.open.wait(0.005):
                    pass

        monkeypatch.setattr(Conversation, "stream", stream)


def wait_ready(window: Window) -> None:
    wait_until(window.chat.send.isEnabled, "a model that is ready")


def close(window: Window) -> None:
    """As a click on its cross, until its thread is over."""
    ended: list[bool] = []
    window.ended.connect(lambda: ended.append(True))
    window.close()
    assert not window.isVisible()
    wait_until(lambda: ended, "the end of the model's thread")
    window.join()


def type_and_send(window: Window, text: str) -> None:
    QTest.keyClicks(window.chat.composer, text)
    QTest.keyClick(window.chat.composer, Qt.Key.Key_Return)


def say(window: Window, text: str = QUESTION) -> str:
    """The whole reply."""
    type_and_send(window, text)
    wait_ready(window)
    return window.chat.transcript.texts()[-1][1]


def last_text(window: Window) -> str:
    return window.chat.transcript.texts()[-1][1]


def roles(window: Window) -> list[str]:
    return [role for role, _ in window.chat.transcript.texts()]


def model_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "model"]
