"""A reply in a Writer document: it grows behind the text that it is about, and stays or goes as one undo step.

Everything here runs in the office's main thread.
"""

# ruff: noqa: ANN401
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# The office brings uno with its own Python; types are made at run time, methods named in its way.

from __future__ import annotations

from typing import Any

from embedllm_actions import Action

PARAGRAPH = "\r"  # Writer's insertString makes a paragraph of it, and a mere line break of "\n"


class Unsuitable(Exception):
    """There is nothing to work on; the text says what is missing."""


class Passage:
    """The text that an action is about."""

    def __init__(self, model: Any, controller: Any, action: Action) -> None:
        """Raises Unsuitable."""
        if model is None or not model.supportsService("com.sun.star.text.TextDocument"):
            raise Unsuitable("This is no text document. Open one in Writer.")
        if model.isReadonly():
            raise Unsuitable("The document is read-only. Save it under another name to change it.")
        self.model = model
        self.cursor = controller.getViewCursor()  # what the user sees and types at
        self.range = _selected(controller)
        if not self.range.getString() and not action.system:
            self.range.gotoStartOfParagraph(True)  # what stands before the cursor is continued
        self.text = self.range.getString().replace("\r\n", "\n")
        if not self.text.strip():
            raise Unsuitable(f"No text is selected. Select the text first, then choose '{action.title}' again.")


class Reply:
    """What the model writes, in the document."""

    def __init__(self, passage: Passage, action: Action) -> None:
        self._passage = passage
        self._action = action
        self._text = passage.range.getText()
        self._undo = passage.model.getUndoManager()
        self._is_begun = False  # the undo step is open
        self._written: Any = None  # a cursor over the reply, once there is one

    def add(self, text: str) -> None:
        """Writes more of the reply."""
        if not self._is_begun:
            self._undo.enterUndoContext(self._action.title)
            self._is_begun = True
            self._passage.cursor.collapseToStart()  # a selection would grow with the reply, and typing replace it
            text = self._action.separator + text
        end = (self._written or self._passage.range).getEnd()
        piece = self._text.createTextCursorByRange(end)
        self._text.insertString(piece, text.replace("\n", PARAGRAPH), True)
        if self._written is None:
            self._written = piece  # a cursor from before would have moved along with what is written at it
        else:
            self._written.gotoRange(piece.getEnd(), True)

    def keep(self) -> None:
        """The reply is whole; it takes the place of the text, or stands behind it."""
        try:
            if self._written is not None and self._action.replaces:
                # not the range itself: its end was where the reply was written, and has moved with it
                before = self._text.createTextCursorByRange(self._passage.range.getStart())
                before.gotoRange(self._written.getStart(), True)
                before.setString("")
        finally:
            self._end_step()

    def drop(self) -> None:
        """The document is as it was; its undo list has one step more, which changes nothing."""
        try:
            if self._written is not None:
                self._written.setString("")
        finally:
            self._end_step()

    def _end_step(self) -> None:
        if self._is_begun:
            self._is_begun = False
            self._undo.leaveUndoContext()


def _selected(controller: Any) -> Any:
    """A cursor over the selection."""
    selection = controller.getSelection()
    if selection is None or not selection.supportsService("com.sun.star.text.TextRanges"):
        raise Unsuitable("No text is selected. Select text, not a picture or a frame.")
    if selection.getCount() != 1:
        raise Unsuitable(f"{selection.getCount()} pieces of text are selected. Select one.")
    chosen = selection.getByIndex(0)
    return chosen.getText().createTextCursorByRange(chosen)
