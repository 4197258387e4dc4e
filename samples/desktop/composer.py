"""The box that the user writes in: Enter sends, Shift and Enter begins a new line."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QPlainTextEdit, QSizePolicy, QWidget

_ENTER = (Qt.Key.Key_Return, Qt.Key.Key_Enter)
_LINES = 3


class Composer(QPlainTextEdit):
    """A text of a few lines, or more."""

    sent = Signal()

    def __init__(self, parent: QWidget | None = None, *, lines: int = _LINES) -> None:
        super().__init__(parent)
        self._lines = lines
        self.setTabChangesFocus(True)
        self.setAccessibleName("Message")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:  # noqa: N802 # Qt's name
        margin = 2 * (self.frameWidth() + round(self.document().documentMargin()))
        return QSize(super().sizeHint().width(), self._lines * self.fontMetrics().lineSpacing() + margin)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 # Qt's name
        if event.key() in _ENTER and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.sent.emit()
        else:
            super().keyPressEvent(event)
