"""Fixtures of the desktop sample's tests, of tests/samples/conftest.py where Qt is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QSettings
from PySide6.QtWidgets import QApplication

from samples.desktop.store import Store
from samples.desktop.window import Window
from tests.support.desktop_window import Gate, close, wait_ready


@pytest.fixture(scope="module")
def application() -> QApplication:
    os.environ["QT_QPA_PLATFORM"] = "offscreen"  # windows are drawn into memory
    running = QApplication.instance()
    return running if isinstance(running, QApplication) else QApplication(["tests"])


@pytest.fixture
def opened(application: QApplication, tmp_path: Path) -> Iterator[Callable[..., Window]]:
    """A function that opens a window on the same conversations and settings; it is closed at the end of the test."""
    windows: list[Window] = []

    def open_window(model: str = "demo", device: str = "cpu", first: str = "") -> Window:
        settings = QSettings(str(tmp_path / "settings.ini"), QSettings.Format.IniFormat)
        window = Window(Store(tmp_path / "conversations"), settings, model=model, device=device, first=first)
        windows.append(window)
        window.show()
        return window

    yield open_window
    for window in windows:
        close(window)
        window.deleteLater()
    application.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@pytest.fixture
def window(opened: Callable[..., Window]) -> Window:
    """With the demo loaded."""
    window = opened()
    wait_ready(window)
    return window


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)
