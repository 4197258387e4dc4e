"""The messages of a conversation in one document: replies as Markdown, never as HTML, with buttons that copy."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import (
    QFont,
    QGuiApplication,
    QMouseEvent,
    QPalette,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFrameFormat,
)
from PySide6.QtWidgets import QTextEdit, QWidget

from embedllm import Message

from .markdown import MarkdownCursor, mixed

_PADDING, _GAP = 10, 4  # pixels
_COPY = "copy:"  # then the number of a message, and of a block of code in it


class Transcript(QTextEdit):
    """What was said. The last message can grow while it comes."""

    copied = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, readOnly=True, undoRedoEnabled=False)
        self.setAccessibleName("Messages")
        self.speaker = "Model"
        self.setFrameShape(QTextEdit.Shape.NoFrame)
        self._messages: list[tuple[str, str]] = []  # role and text
        self._writers: list[MarkdownCursor | None] = []  # None: of the user, whose text is shown as it was typed
        self._end = QTextCursor(self.document())

    def show_messages(self, messages: Sequence[Message]) -> None:
        """These in place of what is shown; those of system and tools are left out."""
        shown = [(str(message["role"]), str(message["content"])) for message in messages]
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
        self._write(text)
        if follows:
            self._to_end()

    def texts(self) -> list[tuple[str, str]]:
        """Role and text of what is shown."""
        return list(self._messages)

    def copy_link(self, link: str) -> None:
        """What a "Copy" stands for goes to the clipboard: a message as the model wrote it, or the code in one."""
        if not link.startswith(_COPY):
            return
        number, _, code = link.removeprefix(_COPY).partition("/")
        text = self._messages[int(number)][1]
        if code and (writer := self._writers[int(number)]) is not None:
            text = "\n".join(writer.codes[int(code)])
        QGuiApplication.clipboard().setText(text)
        self.copied.emit(text)

    def copy_last(self) -> None:
        """The last message."""
        if self._messages:
            self.copy_link(f"{_COPY}{len(self._messages) - 1}")

    def mouseMoveEvent(self, event: QMouseEvent) -> None:  # noqa: N802 # Qt's name
        super().mouseMoveEvent(event)
        is_link = bool(self.anchorAt(event.position().toPoint()))
        self.viewport().setCursor(Qt.CursorShape.PointingHandCursor if is_link else Qt.CursorShape.IBeamCursor)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:  # noqa: N802 # Qt's name
        super().mouseReleaseEvent(event)
        if event.button() == Qt.MouseButton.LeftButton and not self.textCursor().hasSelection():
            self.copy_link(self.anchorAt(event.position().toPoint()))

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 # Qt's name
        super().changeEvent(event)
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange) and hasattr(self, "_end"):
            self._draw(self._messages)  # from light to dark, say

    def _draw(self, messages: Sequence[tuple[str, str]]) -> None:
        pairs = list(messages)
        self._messages, self._writers = [], []
        self.document().clear()
        whole = QTextCursor(self.document())
        whole.beginEditBlock()  # laid out once, at its end
        for role, text in pairs:
            self._insert(role, text)
        whole.endEditBlock()
        self._to_end()

    def _insert(self, role: str, text: str) -> None:
        self._messages.append((role, text))
        self._begin(role)
        self._write(text)

    def _write(self, text: str) -> None:
        writer = self._writers[-1]
        if writer is None:
            self._end.insertText(text)  # insertText takes "<b>" for what it is
        else:
            writer.push(text)

    def _begin(self, role: str) -> None:
        """A frame with the speaker's name; the cursor stands where the text goes."""
        palette, is_user = self.palette(), role == "user"
        text, base = QPalette.ColorRole.Text, QPalette.ColorRole.Base
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
        name, copy = QTextCharFormat(), QTextCharFormat()
        name.setFontWeight(QFont.Weight.Bold)
        name.setForeground(mixed(palette, QPalette.ColorRole.Highlight if is_user else text, text, 0.6))
        copy.setForeground(mixed(palette, text, base, 0.6))
        copy.setAnchor(True)
        copy.setAnchorHref(f"{_COPY}{len(self._messages) - 1}")
        copy.setFontUnderline(True)
        self._end.setBlockFormat(QTextBlockFormat())
        self._end.insertText("You" if is_user else self.speaker, name)
        self._end.insertText("   ", QTextCharFormat())
        self._end.insertText("Copy", copy)
        self._end.insertBlock(QTextBlockFormat(), QTextCharFormat())
        link = f"{_COPY}{len(self._messages) - 1}"
        self._writers.append(None if is_user else MarkdownCursor(self._end, palette, link))

    def _to_end(self) -> None:
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())
