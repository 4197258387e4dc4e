"""The pane for replies in a given form: a text, a JSON schema, and what the model makes of both."""

from __future__ import annotations

import json

from PySide6.QtCore import Signal
from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

import embedllm

from .coalescer import Coalescer
from .composer import Composer

TEXT = "Extract name, city and age as JSON: Anna is 34 years old and lives in Oslo."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "city": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "city", "age"],
    "additionalProperties": False,
}


class StructuredPane(QWidget):
    """Whatever the model is, the reply fulfils the schema."""

    asked = Signal(str, str)  # text, schema
    stopped = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.text, self.schema = Composer(), QPlainTextEdit(json.dumps(SCHEMA, indent=2))
        self.result = QPlainTextEdit(readOnly=True)
        self.state, self.stop, self.run = QLabel(), QPushButton("Stop"), QPushButton("Fill in")
        self.text.setPlainText(TEXT)
        self.text.setAccessibleName("Text")
        fixed = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
        for editor, name in ((self.schema, "JSON schema"), (self.result, "Reply")):
            editor.setFont(fixed)
            editor.setAccessibleName(name)
        self._lay_out()
        self._coming = Coalescer(self, self._write)
        self.run.clicked.connect(self._ask)
        self.stop.clicked.connect(self.stopped)
        self.text.sent.connect(self._ask)

    def take(self, chunk: embedllm.Chunk) -> None:
        """A piece of the reply; with the last one, it is laid out for reading."""
        self._coming.add(chunk.text)
        if chunk.finish_reason is None:
            return
        self._coming.flush()
        speed = f"{chunk.statistics.tokens} tokens, {chunk.statistics.decode_tokens_s:.0f} tokens/s"
        if chunk.finish_reason == "stop":
            value = json.loads(self.result.toPlainText())
            self.result.setPlainText(json.dumps(value, indent=2, ensure_ascii=False))
            self.state.setText(f"Fulfils the schema. {speed}")
        else:
            self.state.setText(f"Cut off ({chunk.finish_reason}): half a value. {speed}")

    def set_state(self, *, is_ready: bool, is_replying: bool) -> None:
        """is_ready: a model is there, and no reply is coming."""
        self.run.setEnabled(is_ready)
        self.stop.setEnabled(is_replying)

    def _ask(self) -> None:
        if self.run.isEnabled() and self.text.toPlainText().strip():
            self._coming.drop()
            self.result.clear()
            self.state.clear()
            self.asked.emit(self.text.toPlainText(), self.schema.toPlainText())

    def _write(self, text: str) -> None:
        cursor = self.result.textCursor()
        cursor.movePosition(cursor.MoveOperation.End)
        cursor.insertText(text)

    def _lay_out(self) -> None:
        column, row, last = QVBoxLayout(self), QHBoxLayout(), QHBoxLayout()
        for name, editor in (("JSON schema", self.schema), ("Reply", self.result)):
            half = QVBoxLayout()
            half.addWidget(QLabel(name))
            half.addWidget(editor)
            row.addLayout(half, 1)
        last.addWidget(self.state, 1)
        last.addWidget(self.stop)
        last.addWidget(self.run)
        column.addWidget(QLabel("Text"))
        column.addWidget(self.text)
        column.addLayout(row, 1)
        column.addLayout(last)
