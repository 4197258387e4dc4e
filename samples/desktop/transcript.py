"""The messages of a conversation, as plain text in one document: what a model writes is never taken as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontDatabase,
    QPalette,
    QSyntaxHighlighter,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextFrameFormat,
)
from PySide6.QtWidgets import QTextEdit, QWidget

from embedllm import Message

_IS_HEADER = QTextFormat.Property.UserProperty + 1  # of the block with the speaker's name
_IN_FENCE = 1
_FENCE = "```"
_PADDING, _GAP = 10, 4  # pixels


class Transcript(QTextEdit):
    """What was said. The last message can grow while it comes."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, readOnly=True, undoRedoEnabled=False)
        self.setAccessibleName("Messages")
        self.speaker = "Model"
        self.setFrameShape(QTextEdit.Shape.NoFrame)
        self._messages: list[tuple[str, str]] = []  # role and text
        self._end = QTextCursor(self.document())
        self._fences = _Fences(self.document())

    def show_messages(self, messages: Sequence[Message]) -> None:
        """These in place of what is shown; those of system and tools are left out."""
        shown = [(str(said["role"]), str(said["content"])) for said in messages]
        self._draw([(role, text) for role, text in shown if role in ("user", "assistant")])

    def add(self, role: str, text: str = "") -> None:
        """A new message, which append() goes on with."""
        self._insert(role, text)
        self._to_end()

    def append_text(self, text: str) -> None:
        """More of the last message. The view follows it when it was at the end."""
        role, before = self._messages[-1]
        self._messages[-1] = role, before + text
        bar = self.verticalScrollBar()
        follows = bar.value() >= bar.maximum() - bar.singleStep()
        self._end.insertText(text)
        if follows:
            self._to_end()

    def texts(self) -> list[tuple[str, str]]:
        """Role and text of what is shown."""
        return list(self._messages)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 # Qt's name
        super().changeEvent(event)
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange) and hasattr(self, "_fences"):
            self._draw(self._messages)  # from light to dark, say

    def _draw(self, messages: Sequence[tuple[str, str]]) -> None:
        kept = list(messages)
        self._messages = []
        self.document().clear()
        whole = QTextCursor(self.document())
        whole.beginEditBlock()  # laid out once, at its end
        for role, text in kept:
            self._insert(role, text)
        whole.endEditBlock()
        self._to_end()

    def _insert(self, role: str, text: str) -> None:
        self._messages.append((role, text))
        self._begin(role)
        self._end.insertText(text)  # insertText takes "<b>" for what it is

    def _begin(self, role: str) -> None:
        """A frame with the speaker's name; the cursor stands where the text goes."""
        palette, is_user = self.palette(), role == "user"
        frame = QTextFrameFormat()
        frame.setPadding(_PADDING)
        frame.setMargin(_GAP)
        if is_user:
            frame.setBackground(palette.color(QPalette.ColorRole.AlternateBase))
        self._end = self.document().rootFrame().lastCursorPosition()
        between = QTextBlockFormat()  # Qt wants an empty line between two frames
        between.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        self._end.setBlockFormat(between)
        self._end.insertFrame(frame)
        header, name = QTextBlockFormat(), QTextCharFormat()
        header.setProperty(_IS_HEADER, True)
        name.setFontWeight(QFont.Weight.Bold)
        name.setForeground(_mixed(palette, QPalette.ColorRole.Highlight if is_user else QPalette.ColorRole.Text))
        self._end.setBlockFormat(header)
        self._end.insertText("You" if is_user else self.speaker, name)
        self._end.insertBlock(QTextBlockFormat(), QTextCharFormat())

    def _to_end(self) -> None:
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())


class _Fences(QSyntaxHighlighter):
    """Draws what stands between ``` fences in a fixed pitch."""

    def __init__(self, document: QTextDocument) -> None:
        super().__init__(document)
        self._code, self._mark = QTextCharFormat(), QTextCharFormat()
        self._code.setFontFamilies(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).families())
        self._mark.setFontFamilies(self._code.fontFamilies())
        self._mark.setForeground(QColor(128, 128, 128))

    def highlightBlock(self, text: str) -> None:  # noqa: N802 # Qt's name
        is_header = self.currentBlock().blockFormat().hasProperty(_IS_HEADER)
        was_inside = not is_header and self.previousBlockState() == _IN_FENCE
        is_mark = text.startswith(_FENCE) and not is_header
        self.setCurrentBlockState(_IN_FENCE if was_inside != is_mark else 0)
        if is_mark or was_inside:
            self.setFormat(0, len(text), self._mark if is_mark else self._code)


def _mixed(palette: QPalette, role: QPalette.ColorRole) -> QColor:
    """A colour of the system's palette, drawn towards that of its text: readable in light and dark."""
    one, other = palette.color(role), palette.color(QPalette.ColorRole.Text)
    return QColor(*(round(0.6 * a + 0.4 * b) for a, b in zip(one.getRgb()[:3], other.getRgb()[:3], strict=True)))  # type: ignore[index] # a tuple of four
