"""The pane for tools: the model asks for a call, the user allows it, the model answers with its result."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

import embedllm

from . import tools
from .coalescer import Coalescer
from .composer import Composer
from .events import Question

QUESTION = "What is 342 times 61?"


class ToolsPane(QWidget):
    """A question, the calls that it leads to, the answer. No call runs that was not allowed here."""

    asked = Signal(str)
    stopped = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.text, self.log = Composer(), QPlainTextEdit(readOnly=True)
        self.text.setPlainText(QUESTION)
        self.log.setAccessibleName("Calls and answers")
        self.run, self.stop = QPushButton("Ask"), QPushButton("Stop")
        self.allow, self.decline = QPushButton("Run it"), QPushButton("Decline")
        self.call = QLabel(textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self._question: Question | None = None
        self._coming = Coalescer(self, self._write)
        self._lay_out()
        self._show_question(None)
        self.run.clicked.connect(self._ask)
        self.stop.clicked.connect(self.stopped)
        self.text.sent.connect(self._ask)
        self.allow.clicked.connect(lambda: self._answer(True))
        self.decline.clicked.connect(lambda: self._answer(False))

    def ask(self, question: Question) -> None:
        """Shows a call; the model's thread waits for the answer."""
        self._show_question(question)
        self.allow.setFocus()

    def take(self, chunk: embedllm.Chunk) -> None:
        """A piece of a reply."""
        self._coming.add(chunk.text)

    def take_outcome(self, outcome: embedllm.ToolOutcome) -> None:
        self._add_line(f"{outcome.call} → {outcome.result}")

    def take_answer(self, completion: embedllm.Completion) -> None:
        """The end of the last reply; its text has come already."""
        self._coming.flush()
        if completion.tool_calls:
            self._add_line("(stopped: the model wants to go on calling)")
        elif completion.finish_reason != "stop":
            self._add_line(f"(cut off: {completion.finish_reason})")

    def end(self) -> None:
        """The question is over, whatever became of it."""
        self._show_question(None)

    def set_state(self, *, is_ready: bool, is_replying: bool) -> None:
        """is_ready: a model is there, and no reply is coming."""
        self.run.setEnabled(is_ready)
        self.stop.setEnabled(is_replying)

    def _ask(self) -> None:
        text = self.text.toPlainText().strip()
        if self.run.isEnabled() and text:
            self._add_line(f"\nYou: {text}" if self.log.toPlainText() else f"You: {text}")
            self.asked.emit(text)

    def _add_line(self, line: str) -> None:
        """A line of its own; the next text begins on the one after it."""
        self._coming.flush()
        log = self.log.toPlainText()
        self._write(f"{line}\n" if not log or log.endswith("\n") else f"\n{line}\n")

    def _write(self, text: str) -> None:
        cursor = self.log.textCursor()
        cursor.movePosition(cursor.MoveOperation.End)
        cursor.insertText(text)
        self.log.ensureCursorVisible()

    def _answer(self, is_allowed: bool) -> None:
        question = self._question
        self._show_question(None)
        if question is not None:
            question.answer(is_allowed)

    def _show_question(self, question: Question | None) -> None:
        self._question = question
        self.call.setText("" if question is None else f"The model asks to run {question.call}")
        for part in (self.call, self.allow, self.decline):
            part.setVisible(question is not None)

    def _lay_out(self) -> None:
        column, asking, row = QVBoxLayout(self), QHBoxLayout(), QHBoxLayout()
        names = QLabel(f"Tools: {', '.join(tools.FUNCTIONS)}")
        asking.addWidget(self.call, 1)
        asking.addWidget(self.allow)
        asking.addWidget(self.decline)
        row.addWidget(names, 1)
        row.addWidget(self.stop)
        row.addWidget(self.run)
        column.addWidget(self.log, 1)
        column.addLayout(asking)
        column.addWidget(self.text)
        column.addLayout(row)
