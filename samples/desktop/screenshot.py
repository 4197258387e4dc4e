"""Draws docs/images/desktop.png: the window without a display, with replies of the demo model.

python samples/desktop/screenshot.py docs/images/desktop.png
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QT_SCALE_FACTOR", "1.5")
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from PySide6.QtCore import QSettings
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from desktop.store import Store
from desktop.window import Window

CONVERSATIONS = (
    ("how do I extract a tar.gz archive?",),
    ("what is a process?", "list running processes"),
    ("find all log files", "only those larger than 10 MB"),
)
_PATIENCE_MS, _STEP_MS = 60_000, 10


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
    for _ in range(_PATIENCE_MS // _STEP_MS):
        if is_so():
            return
        QTest.qWait(_STEP_MS)
    raise RuntimeError(f"waited {_PATIENCE_MS / 1000:.0f} s in vain for the model.")


if __name__ == "__main__":
    main(sys.argv[1])
