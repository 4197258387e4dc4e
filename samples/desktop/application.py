"""The program: its options, where this system keeps an application's data, the event loop."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QSettings, QStandardPaths, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from . import theme
from .picker import DEMO
from .store import Store
from .window import Window

NAME = "embedllm-chat"
_TICK_MS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until the window is closed. Returns the exit status."""
    options = _parser().parse_args(arguments)
    running = QApplication.instance()
    application = running if isinstance(running, QApplication) else QApplication(sys.argv[:1])
    application.setApplicationName(NAME)
    is_path = options.model not in ("", DEMO) and Path(options.model).exists()  # else it may be a name of the hub
    model = str(Path(options.model).resolve()) if is_path else options.model
    folder = options.data or Path(QStandardPaths.writableLocation(QStandardPaths.StandardLocation.AppDataLocation))
    settings = QSettings(str(folder / "settings.ini"), QSettings.Format.IniFormat)
    theme.apply(application, str(settings.value("theme", theme.SYSTEM)))
    QGuiApplication.styleHints().colorSchemeChanged.connect(
        lambda _: theme.apply(application, str(settings.value("theme", theme.SYSTEM)))
    )
    window = Window(Store(folder / "conversations"), settings, model=model, device=options.device, first=options.say)
    application.setQuitOnLastWindowClosed(False)  # the model's thread ends behind the closed window
    window.ended.connect(application.quit)
    window.show()
    with_ctrl_c = _closed_by_ctrl_c(window)
    status = application.exec()
    with_ctrl_c.stop()
    window.join()
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="desktop", description="Chats with a model on this machine.")
    parser.add_argument(
        "--model",
        default="",
        metavar="MODEL",
        help="a folder of 'embedllm export', a GGUF file, a name of the hub (org/name) or 'demo'; or the last",
    )
    parser.add_argument("--device", default="", help="a name of 'embedllm devices', or 'auto'")
    parser.add_argument("--say", default="", metavar="TEXT", help="the first message of a new conversation")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where conversations and settings are kept")
    return parser


def _closed_by_ctrl_c(window: Window) -> QTimer:
    """In a terminal Ctrl-C closes the window. Python sees a signal only while it runs, which the timer sees to."""
    signal.signal(signal.SIGINT, lambda *_: window.close())
    timer = QTimer(interval=_TICK_MS)
    timer.timeout.connect(lambda: None)
    timer.start()
    return timer
