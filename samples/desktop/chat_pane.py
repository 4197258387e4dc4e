"""The pane of the open conversation: messages, the box to write in, and what can be done about a reply."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

import embedllm

from .coalescer import Coalescer
from .composer import Composer
from .store import Entry
from .transcript import Transcript


class ChatPane(QWidget):
    """Shows an entry; a reply grows in it."""

    asked = Signal(str)
    again = Signal()
    stopped = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.transcript, self.composer = Transcript(), Composer()
        self.composer.setPlaceholderText("Write a message. Enter sends, Shift+Enter begins a new line, Esc stops.")
        self.send, self.stop, self.regenerate = QPushButton("Send"), QPushButton("Stop"), QPushButton("Regenerate")
        self.copy = QPushButton("Copy reply")
        self.send.setObjectName("primary")  # theme.py paints it
        self._question = ""  # while its reply comes
        self._shown: Entry = Entry()
        self._coming = Coalescer(self, self.transcript.append_text)
        self._is_ready = False
        self._lay_out()
        self.composer.sent.connect(self._ask)
        self.send.clicked.connect(self._ask)
        self.stop.clicked.connect(self.stopped)
        self.regenerate.clicked.connect(self._ask_again)
        self.copy.clicked.connect(self.transcript.copy_last)
        self.set_state(is_ready=False, is_replying=False)

    @property
    def shown(self) -> Entry:
        return self._shown

    def show_entry(self, entry: Entry) -> None:
        """Its history, at once. What was coming is dropped."""
        self._coming.drop()
        self._question = ""
        self._shown = entry
        self.transcript.show_messages(entry.messages)

    def take(self, chunk: embedllm.Chunk) -> None:
        """A piece of the reply."""
        self._coming.add(chunk.text)

    def end_turn(self, entry: Entry) -> None:
        """The reply as it was kept. What was said without getting one goes back into the box."""
        is_kept = len(entry.messages) > len(self._shown.messages)
        if self._question and not is_kept and not self.composer.toPlainText():
            self.composer.setPlainText(self._question)
        self._coming.flush()
        self._question, self._shown = "", entry
        texts = [(str(message["role"]), str(message["content"])) for message in entry.messages]
        if self.transcript.texts() != texts:
            self.transcript.show_messages(entry.messages)

    def set_state(self, *, is_ready: bool, is_replying: bool) -> None:
        """is_ready: a model is there, and no reply is coming."""
        self._is_ready = is_ready
        self.send.setEnabled(is_ready)
        self.regenerate.setEnabled(is_ready and bool(self._shown.messages))
        self.stop.setEnabled(is_replying)
        self.copy.setEnabled(bool(self._shown.messages))

    def _ask(self) -> None:
        text = self.composer.toPlainText().strip()
        if not text or not self._is_ready:
            return
        self._question = text
        self.composer.clear()
        self.transcript.add("user", text)
        self.transcript.add("assistant")
        self.asked.emit(text)

    def _ask_again(self) -> None:
        """Takes the last reply away and has another one made; the old one comes back if that fails."""
        messages = list(self._shown.messages)
        while messages and messages[-1]["role"] != "user":
            messages.pop()
        if messages:
            self.transcript.show_messages(messages)
            self.transcript.add("assistant")
            self.again.emit()

    def _lay_out(self) -> None:
        column, row = QVBoxLayout(self), QHBoxLayout()
        row.addWidget(self.regenerate)
        row.addWidget(self.copy)
        row.addStretch(1)
        row.addWidget(self.stop)
        row.addWidget(self.send)
        column.addWidget(self.transcript, 1)
        column.addWidget(self.composer)
        column.addLayout(row)
        self.send.setToolTip("Enter")
        self.stop.setToolTip("Esc")
        self.copy.setShortcut(QKeySequence("Ctrl+Shift+C"))
        self.copy.setToolTip("The last reply, as the model wrote it (Ctrl+Shift+C)")
        self.regenerate.setToolTip("The last reply once more, with another seed")
