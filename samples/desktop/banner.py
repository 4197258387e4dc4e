"""A line above the conversation for errors and questions; unlike a dialog it stops nobody."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QToolButton, QWidget


class Banner(QFrame):
    """Hidden until there is something to say."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.StyledPanel)
        self._text = QLabel(textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.action = QPushButton()
        self.dismiss = QToolButton(autoRaise=True)
        self.dismiss.setText("✕")
        self.dismiss.setToolTip("Dismiss")
        self.dismiss.setAccessibleName("Dismiss")
        self._act: Callable[[], object] | None = None
        row = QHBoxLayout(self)
        for part in (self._text, self.action, self.dismiss):
            row.addWidget(part)
        self.action.clicked.connect(self._take_action)
        self.dismiss.clicked.connect(self.hide)
        self.hide()

    def text(self) -> str:
        """What is shown; empty when nothing is."""
        return "" if self.isHidden() else self._text.text()

    def tell(self, text: str) -> None:
        self._show(text, "", None)

    def ask(self, text: str, action: str, act: Callable[[], object]) -> None:
        """A question with one button; dismissed, nothing is done."""
        self._show(text, action, act)

    def _show(self, text: str, action: str, act: Callable[[], object] | None) -> None:
        self._act = act
        self._text.setText(text)
        self.action.setText(action)
        self.action.setVisible(act is not None)
        self.show()

    def _take_action(self) -> None:
        self.hide()
        if self._act is not None:
            self._act()
