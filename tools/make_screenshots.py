"""Draws the pictures in docs/images: the desktop and the web sample, with replies of the demo model.

    python tools/make_screenshots.py [desktop] [web]

desktop: the window without a display; takes PySide6 (samples/desktop/requirements.txt) and the libraries of the system
that .ci/qt.sh installs. web: the page in Chromium; takes what .ci/browser.sh installs. Without a name: both.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from samples.desktop.window import Window

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CONVERSATIONS = (
    ("how do I extract a tar.gz archive?",),
    ("what is a process?", "list running processes"),
    ("find all log files", "only those larger than 10 MB"),
)
_PATIENCE_S = 60
_MOST_BYTES = 200_000
_PHONE = {"viewport": {"width": 320, "height": 640}}


def draw_desktop() -> None:
    """Raises RuntimeError when the model gives no replies."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    os.environ.setdefault("QT_SCALE_FACTOR", "1.5")
    from PySide6.QtCore import QCoreApplication, QSettings
    from PySide6.QtWidgets import QApplication

    from samples.desktop import theme
    from samples.desktop.store import Store
    from samples.desktop.window import Window

    application = QApplication([])
    with tempfile.TemporaryDirectory() as data:
        settings = QSettings(str(Path(data) / "settings.ini"), QSettings.Format.IniFormat)
        theme.apply(application, theme.LIGHT)
        window = Window(Store(Path(data)), settings, model="demo", device="cpu")
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
        for name, file in ((theme.LIGHT, "desktop.png"), (theme.DARK, "desktop-dark.png")):
            theme.apply(application, name)
            QCoreApplication.processEvents()
            _save(window, IMAGES / file)
        window.ended.connect(application.quit)
        window.close()
        application.exec()
        window.join()


def draw_web() -> None:
    """Raises RuntimeError when Node.js, its packages or Chromium are not here."""
    from tests.web.support import found
    from tests.web.support.browser import Browser
    from tests.web.support.chat_page import ChatPage, serve_sample
    from tests.web.support.server import WebServer

    modules = found.node_modules()
    if (lack := found.missing()) or modules is None:
        raise RuntimeError(lack)
    web = ROOT / "bindings_web"
    with WebServer({"/src": web / "src", "/node_modules": modules}) as server, Browser() as browser:
        url = serve_sample(server, "chat", modules=modules)
        for options, file in (
            ({"viewport": {"width": 900, "height": 860}}, "web-chat.png"),
            (_PHONE, "web-chat-phone.png"),
        ):
            chat = ChatPage(browser.context(options=options), url)
            chat.load()
            for question in CONVERSATIONS[-1]:
                chat.ask(question)
            chat.page.screenshot(IMAGES / file)
            _check_size(IMAGES / file)


def _save(window: Window, path: Path) -> None:
    if not window.grab().save(str(path)):
        raise OSError(f"'{path}' cannot be written.")
    _check_size(path)


def _check_size(path: Path) -> None:
    """Raises OSError for a picture that would make clones large."""
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise OSError(f"'{path}' has {size:,} bytes; expected at most {_MOST_BYTES:,}.")


def _wait(is_so: Callable[[], bool]) -> None:
    """Lets the event loop go on; QTest.qWait keeps the interpreter to itself, and the model's thread crawls."""
    from PySide6.QtCore import QCoreApplication, QEventLoop, QTimer

    end = time.monotonic() + _PATIENCE_S
    awake = QTimer(interval=10)
    awake.start()
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {_PATIENCE_S} s in vain for the model.")
        QCoreApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    draws = {"desktop": draw_desktop, "web": draw_web}
    for name in sys.argv[1:] or draws:
        draws[name]()
