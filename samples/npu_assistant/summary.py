"""A summary of a text of any length: of its parts first, then of their summaries."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from embedllm import Cancel, Completion, ContextFull, Message

from .reply import VARIABLES, ChatModel, Notice, Text, count_tokens, stream_reply
from .retrieval import PASSAGE_CHARACTERS, split

_LEAST_ROOM = 128  # tokens of text at once, below which nothing sensible comes out


def summarise(
    model: ChatModel, name: str, text: str, cancel: Cancel, *, reply_tokens: int
) -> Generator[Text | Notice, None, list[Completion]]:
    """AltUpStreams the summary; at the end gives every run of the model, the summary itself last unless cancelled.

    Raises ContextFull when the model's context is too small for this.
    """
    frame = count_tokens(model, model.prompt([_request(name, "")], variables=VARIABLES))
    room = model.context - reply_tokens - frame
    if room < _LEAST_ROOM:
        raise ContextFull(
            f"{room} tokens of the context's {model.context} are left for the text; {_LEAST_ROOM} are needed.",
            tokens=_LEAST_ROOM, limit=room,
        )  # fmt: skip
    replies: list[Completion] = []
    # of a part at most a quarter comes back and a part is at least half full, so that each pass leaves fewer
    part_tokens = min(reply_tokens, room // 4)
    while len(parts := _parts(model, text, room)) > 1:
        shorter: list[str] = []
        for number, part in enumerate(parts, 1):
            yield Notice(f"reading part {number} of {len(parts)}")
            part_of = stream_reply(model, [_request(name, part)], cancel, max_tokens=part_tokens)
            replies.append((yield from _without_text(part_of)))
            if cancel.cancelled:
                return replies
            shorter.append(replies[-1].text.strip())
        text = "\n\n".join(shorter)
    last = yield from stream_reply(model, [_request(name, text)], cancel, max_tokens=reply_tokens)
    return [*replies, last]


def _request(name: str, text: str) -> Message:
    return {"role": "user", "content": f"Summarise this text from {name} in a few sentences:\n\n{text}"}


def _parts(model: ChatModel, text: str, room: int) -> list[str]:
    """The text in parts of at most `room` tokens."""

    def tokens(piece: str) -> int:
        return count_tokens(model, piece)

    parts: list[list[str]] = []
    used = room + 1  # no part yet
    for piece in _pieces(text, room // 2, tokens):
        size = tokens(piece)
        if used + size > room:
            parts.append([])
            used = 0
        parts[-1].append(piece)
        used += size
    return ["".join(part) for part in parts] or [""]


def _pieces(text: str, most: int, tokens: Callable[[str], int], size: int = PASSAGE_CHARACTERS) -> Iterator[str]:
    """Passages of the text, made smaller until each has at most `most` tokens: a character can be several."""
    for passage in split(text, "", size):
        if tokens(passage.text) <= most:
            yield passage.text
        else:
            yield from _pieces(passage.text, most, tokens, len(passage.text) // 2)


def _without_text(events: Generator[Text | Notice, None, Completion]) -> Generator[Notice, None, Completion]:
    """The same without the text, which is no reply to the user; that a part was cut off is as it should be."""
    while True:
        try:
            event = next(events)
        except StopIteration as stop:
            return stop.value
        if isinstance(event, Notice) and event.text == "stopped":
            yield event
