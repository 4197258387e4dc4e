"""Reasoning apart from the answer, in a reply that comes in pieces: think tags here, Harmony's channels elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from embedllm.tools.calls import Parts
from embedllm.tools.stream_parser import begun

_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def think_tags(templates: Iterable[str]) -> tuple[str, str] | None:
    """The tags that a model's chat templates know, opening and closing; None for a model that has none."""
    text = "\n".join(templates)
    return next((tags for tags in _TAGS if tags[1] in text), None)


class ThinkReader:
    """Parts what stands between the tags at the beginning of a reply from all that follows.

    is_open: the prompt ended with the opening tag. Newlines beside the tags belong to neither; tags
    further on are text.
    """

    def __init__(self, tags: tuple[str, str], *, is_open: bool = False) -> None:
        self._opening, self._closing = tags
        self._is_open = is_open
        self._held = ""
        self._place: Literal["start", "thought", "gap", "answer"] = "start"
        self._has_thought = False

    def push(self, piece: str, finish_reason: str | None = None) -> Parts:
        """Takes the next piece."""
        if self._place == "answer":
            return Parts(piece)
        self._held += piece
        is_end = finish_reason is not None
        if self._place == "start":
            self._begin(is_end=is_end)
        thought = self._thought(is_end=is_end) if self._place == "thought" else ""
        text = ""
        if self._place in ("gap", "answer"):
            text = self._held if self._place == "answer" else self._held.lstrip("\n")
            self._held = ""
            self._place = "answer" if text else self._place
        return Parts(text, thought)

    def _begin(self, *, is_end: bool) -> None:
        """Finds out what the reply begins with, as soon as that is clear."""
        found = self._held.lstrip()
        if found.startswith(self._opening):
            self._place, self._held = "thought", found.removeprefix(self._opening)
        elif is_end or not self._opening.startswith(found):
            self._place = "thought" if self._is_open else "answer"

    def _thought(self, *, is_end: bool) -> str:
        before, tag, after = self._held.partition(self._closing)
        if tag:
            thought, self._held, self._place = before.rstrip("\n"), after, "gap"
        else:
            open_end = 0 if is_end else begun(before, (self._closing,))
            thought = before[: len(before) - open_end].rstrip("\n")
            self._held = "" if is_end else before[len(thought) :]
        if not self._has_thought:
            thought = thought.lstrip("\n")
        self._has_thought = self._has_thought or bool(thought)
        return thought
