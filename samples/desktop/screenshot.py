"""Draws docs/images/desktop.png: the window without a display, with replies of the demo model.

python samples/desktop/screenshot.py docs/images/desktop.png
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QT_SCALE_FACTOR", "1.5")
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from PySide6.QtCore import QCoreApplication, QEventLoop, QSettings, QTimer
from PySide6.QtWidgets import QApplication

from desktop.store import Store
from desktop.window import Window

CONVERSATIONS = (
    ("how do I extract a tar.gz archive?",),
    ("what is a process?", "list running processes"),
    ("find all log files", "only those larger than 10 MB"),
)
_PATIENCE_S = 60


def main(file: str) -> None:
    """Writes the picture. Raises OSError when it cannot be written, RuntimeError when the model gives no replies."""
    application = QApplication([])
    with tempfile.TemporaryDirectory() as folder:
        settings = QSettings(str(Path(folder) / "settings.ini"), QSettings.Format.IniFormat)
        window = Window(Store(Path(folder)), settings, model="demo", device="cpu")
        window.resize(900, 620)
        window.show()
        for questions in CONVERSATIONS:
            _wait(window.chat.send.isEnabled)
            window.sidebar.new.click()
            for question in questions:
                window.chat.composer.setPlainText(question)
                window.chat.send.click()
                _wait(window.chat.send.isEnabled)
        _wait(lambda: not window.status.progress.isVisible())
        if not window.grab().save(file):
            raise OSError(f"'{file}' cannot be written.")
        window.ended.connect(application.quit)
        window.close()
        application.exec()
        window.join()


def _wait(is_so: Callable[[], bool]) -> None:
    """Lets the event loop go on; QTest.qWait keeps the interpreter to itself, and the model's thread crawls."""
    end = time.monotonic() + _PATIENCE_S
    awake = QTimer(interval=10)
    awake.start()
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {_PATIENCE_S} s in vain for the model.")
        QCoreApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)


if __name__ == "__main__":
    main(sys.argv[1])
