"""The desktop sample's chat, through its widgets: typed, clicked and closed, with the demo model."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QColor, QPalette
from PySide6.QtTest import QTest

import embedllm
from embedllm import Conversation
from tests.support.desktop_window import (
    QUESTION,
    Gate,
    Window,
    close,
    last_text,
    model_threads,
    roles,
    say,
    type_and_send,
    wait_ready,
    wait_until,
)

ROOT = Path(__file__).parents[2]


def test_a_reply_comes_in_pieces_while_the_window_goes_on(opened: Callable[..., Window], gate: Gate) -> None:
    ticks = itertools.count()
    window = opened()
    timer = QTimer(window, interval=0)
    timer.timeout.connect(lambda: next(ticks))
    timer.start()
    wait_ready(window)
    assert next(ticks) > 1  # while it was loading
    type_and_send(window, QUESTION)
    wait_until(lambda: last_text(window), "the first piece")
    first, before = last_text(window), next(ticks)
    assert window.chat.stop.isEnabled()
    assert not window.chat.send.isEnabled()
    wait_until(lambda: next(ticks) > before + 10, "an event loop that goes on during a reply")
    gate.open.set()
    wait_ready(window)
    assert last_text(window).startswith(first)
    assert len(last_text(window)) > len(first)
    assert "tar" in last_text(window)
    assert roles(window) == ["user", "assistant"]
    assert "tokens/s" in window.status.speed.text()
    assert "demo on cpu" in window.status.device.text()


def test_many_pieces_are_drawn_together(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    window.chat.transcript.add("assistant")
    drawn: list[str] = []
    monkeypatch.setattr(window.chat._coming, "_write", drawn.append)
    pieces = [f"{number} " for number in range(500)]
    for piece in pieces:
        window.chat._coming.add(piece)
    wait_until(lambda: drawn, "text that is drawn")
    assert drawn == ["".join(pieces)]


def test_escape_stops_and_keeps_what_was_said(window: Window, gate: Gate) -> None:
    type_and_send(window, QUESTION)
    wait_until(lambda: last_text(window), "the first piece")
    QTest.keyClick(window, Qt.Key.Key_Escape)
    wait_ready(window)
    said = [message["content"] for message in window.chat.shown.messages]
    assert said == [QUESTION, last_text(window)]
    gate.open.set()
    assert len(say(window, "list files by size")) > 0


def test_shift_enter_begins_a_line_and_blank_text_is_not_sent(window: Window) -> None:
    composer = window.chat.composer
    QTest.keyClick(composer, Qt.Key.Key_Return)
    QTest.keyClicks(composer, "one")
    QTest.keyClick(composer, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    QTest.keyClicks(composer, "two")
    assert composer.toPlainText() == "one\ntwo"
    assert not window.chat.transcript.texts()


def test_regenerate_takes_another_seed(window: Window, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.open.set()
    seeds = iter([1, 2])
    monkeypatch.setattr(random, "randrange", lambda stop: next(seeds))
    say(window)
    replies = []
    for _ in range(2):
        window.chat.regenerate.click()
        wait_ready(window)
        replies.append(last_text(window))
    assert roles(window) == ["user", "assistant"]
    assert all(replies)
    assert [found and found.seed for found in gate.samplings] == [None, 1, 2]
    assert all(found is None or found.temperature > 0 for found in gate.samplings)


def test_a_stopped_regeneration_without_text_leaves_the_old_reply(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = say(window)

    def fail(*_: object, **__: object) -> None:
        raise embedllm.DeviceError("the device is gone")

    monkeypatch.setattr(Conversation, "stream", fail)
    window.chat.regenerate.click()
    wait_until(window.banner.text, "the error")
    assert window.banner.text() == "the device is gone"
    assert last_text(window) == old
    assert roles(window) == ["user", "assistant"]


def test_text_of_a_model_is_never_taken_as_html(window: Window) -> None:
    transcript = window.chat.transcript
    text = '<b>bold</b> <img src="file:///etc/passwd"> ![x](file:///etc/passwd) &amp;\n```\n<i>code</i>\n```\n'
    for _ in range(2):
        shown = transcript.toPlainText()
        for line in ('<b>bold</b> <img src="file:///etc/passwd"> !x (file:///etc/passwd) &amp;', "<i>code</i>"):
            assert line in shown.splitlines() or not shown
        transcript.show_messages([{"role": "assistant", "content": text}])
    assert "<i>code</i>" in transcript.toPlainText()
    window.banner.tell(text)
    assert window.banner.text() == text


def test_what_is_shown_follows_the_colours_of_the_system(window: Window) -> None:
    say(window)
    before, texts = window.grab().toImage(), window.chat.transcript.texts()
    dark = QPalette(QColor(30, 30, 30))
    for role in (QPalette.ColorRole.Base, QPalette.ColorRole.AlternateBase):
        dark.setColor(role, QColor(20, 20, 20))
    window.setPalette(dark)
    assert window.chat.transcript.texts() == texts
    after = window.grab().toImage()
    for part in (window.chat.transcript, window.sidebar.list, window.chat.composer):
        place = part.mapTo(window, part.rect().center())
        assert after.pixelColor(place).lightness() < before.pixelColor(place).lightness()


@pytest.mark.parametrize("moment", ["loading", "replying", "asking"])
def test_closing_leaves_no_thread(opened: Callable[..., Window], gate: Gate, tmp_path: Path, moment: str) -> None:
    window = opened()
    if moment != "loading":
        wait_ready(window)
    if moment == "replying":
        type_and_send(window, QUESTION)
        wait_until(lambda: last_text(window), "the first piece")
    if moment == "asking":
        window.tabs.setCurrentWidget(window.tools)
        window.tools.run.click()
        wait_until(window.tools.allow.isVisible, "the question")
    assert model_threads()
    close(window)
    assert not model_threads()
    kept = [json.loads(file.read_text())["messages"] for file in (tmp_path / "conversations").glob("*.json")]
    assert [len(messages) for messages in kept] == ([2] if moment == "replying" else [])


def test_a_message_that_is_too_long_comes_back_into_the_box(window: Window) -> None:
    say(window)
    long = "word " * 3000
    window.chat.composer.setPlainText(long)
    window.chat.send.click()
    wait_until(window.banner.text, "the error")
    assert "tokens" in window.banner.text()
    assert window.chat.composer.toPlainText() == long.strip()
    assert roles(window) == ["user", "assistant"]


def test_a_first_message_is_said_when_the_model_is_ready(opened: Callable[..., Window]) -> None:
    window = opened(first=QUESTION)
    wait_until(lambda: window.chat.shown.messages, "the reply")
    assert roles(window) == ["user", "assistant"]
    assert window.chat.transcript.texts()[0][1] == QUESTION


@pytest.mark.slow
def test_a_conversation_goes_on_without_its_oldest_turns_when_the_context_is_full(window: Window) -> None:
    long = "word " * 900
    for _ in range(2):
        window.chat.composer.setPlainText(long)
        window.chat.send.click()
        wait_until(lambda: window.chat.send.isEnabled() or window.banner.text(), "a reply")
    assert not window.banner.text()
    assert roles(window) == ["user", "assistant"] * 2
    assert "left out" in window.status.speed.text()


def test_a_mistake_in_the_thread_is_said_and_the_window_still_closes(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake")

    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    monkeypatch.setattr(Conversation, "stream", fail)
    type_and_send(window, QUESTION)
    wait_until(window.banner.text, "the end of the thread")
    assert "ended by an error" in window.banner.text()
    assert not window.chat.send.isEnabled()
    window.join()
    assert len(seen) == 1


def test_it_runs_as_a_program(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['desktop']; from PySide6.QtCore import QTimer; from PySide6.QtWidgets import *;"
        "from samples.desktop import application, window; shown = window.Window.show;"
        "window.Window.show = lambda self: (shown(self), QTimer.singleShot(0, self.close));"
        "sys.exit(application.main(['--model', 'demo', '--device', 'cpu', '--data', sys.argv[0] and DATA]))"
    ).replace("DATA", repr(str(tmp_path / "data")))
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                            capture_output=True, text=True, check=False, timeout=120)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "data" / "settings.ini").is_file()
