"""Text that comes in hundreds of pieces a second, handed on thirty times a second: more need not be drawn."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer

_INTERVAL_MS = 33


class Coalescer(QObject):
    """Collects pieces, and writes all that came since the last time.

    write: called with text that is not empty, in the thread that calls add().
    """

    def __init__(self, parent: QObject, write: Callable[[str], object]) -> None:
        super().__init__(parent)
        self._write = write
        self._pieces: list[str] = []
        self._timer = QTimer(self, interval=_INTERVAL_MS, singleShot=True)
        self._timer.timeout.connect(self.flush)

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            if not self._timer.isActive():
                self._timer.start()

    def flush(self) -> None:
        """Writes what waits, now."""
        self._timer.stop()
        text = "".join(self._pieces)
        self._pieces.clear()
        if text:
            self._write(text)

    def drop(self) -> None:
        """Forgets what waits."""
        self._timer.stop()
        self._pieces.clear()
