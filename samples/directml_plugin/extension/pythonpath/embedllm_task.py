"""One action in the main thread: what the worker tells goes into the document, until the end."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# The office brings uno with its own Python; types are made at run time, methods named in its way.

from __future__ import annotations

from collections.abc import Callable

from com.sun.star.uno import Exception as UnoException
from embedllm_asking import DONE, FAILED, Asking, Note, Outcome, Piece
from embedllm_document import Reply


class Task:
    """A request to the worker and its reply in the document."""

    def __init__(self, asking: Asking, reply: Reply, on_note: Callable[[str], None]) -> None:
        self._asking = asking
        self._reply = reply
        self._on_note = on_note
        self._trouble = ""  # why the document can't be written to

    def cancel(self) -> None:
        """Ends it soon, with the document as it was."""
        self._asking.cancel()

    def take(self) -> Outcome | None:
        """Writes all that has come so far; how it ended, once it has."""
        events = self._asking.take_events()
        text = "".join(event.text for event in events if isinstance(event, Piece))
        outcome = next((event for event in events if isinstance(event, Outcome)), None)
        for note in events:
            if isinstance(note, Note):
                self._on_note(note.text)
        try:
            if text and not self._asking.is_cancelled:
                self._reply.add(text)
            if outcome is not None:
                self._reply.keep() if outcome.state == DONE else self._reply.drop()
        except UnoException as error:  # the document was closed, or protected, meanwhile
            self._trouble = self._trouble or f"The document could not be changed: {error.Message}"
            self._asking.cancel()
        return Outcome(FAILED, self._trouble) if outcome and self._trouble else outcome
