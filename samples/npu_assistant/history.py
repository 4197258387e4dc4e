"""The conversation in a file, so that it goes on after a restart; written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from embedllm import Message

Turn = list[Message]  # the user's message and all that followed, up to the reply

MOST_TURNS = 200
_VERSION = 1


class DamagedHistory(Exception):
    """The file holds something else than a conversation."""


class History:
    """The turns so far, the newest last. file: None keeps them in memory only."""

    def __init__(self, file: Path | None = None, turns: Sequence[Turn] = ()) -> None:
        self.file = file
        self.turns = list(turns)

    @classmethod
    def open(cls, file: Path) -> History:
        """What a file holds; a file that is not there is an empty history. Raises DamagedHistory, OSError."""
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls(file)
        except UnicodeDecodeError as error:
            raise DamagedHistory(f"'{file}' is no text ({error}).") from error
        return cls(file, _turns(text, file))

    def add(self, turn: Turn) -> int:
        """Appends a turn and writes the file; how many of the oldest turns were dropped for it. Raises OSError."""
        self.turns.append(turn)
        dropped = max(0, len(self.turns) - MOST_TURNS)
        del self.turns[:dropped]
        self._write()
        return dropped

    def clear(self) -> None:
        """Forgets everything, in the file too. Raises OSError."""
        self.turns.clear()
        self._write()

    def _write(self) -> None:
        """A new file takes the place of the old one in one step. Only its owner can read it: mkstemp sees to that."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=self.file.parent, prefix=f".{self.file.name}.")
        partial = Path(name)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as stream:
                json.dump({"version": _VERSION, "turns": self.turns}, stream, ensure_ascii=True, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, self.file)  # noqa: PTH105  # the name that is known for being atomic
        finally:
            partial.unlink(missing_ok=True)


def default_file() -> Path:
    """Where this system keeps an application's data."""
    import platformdirs

    return platformdirs.user_data_path("npu_assistant", appauthor=False) / "conversation.json"


def _turns(text: str, file: Path) -> list[Turn]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedHistory(f"'{file}' is no JSON ({error}).") from error
    if not isinstance(data, dict) or data.get("version") != _VERSION or not isinstance(data.get("turns"), list):
        raise DamagedHistory(f"'{file}' is no conversation of this version of the assistant.")
    turns = data["turns"]
    if not all(isinstance(turn, list) and turn and all(map(_is_message, turn)) for turn in turns):
        raise DamagedHistory(f"'{file}' holds turns that are no lists of messages.")
    return turns


def _is_message(message: object) -> bool:
    return (
        isinstance(message, dict)
        and message.get("role") in ("user", "assistant", "tool")
        and isinstance(message.get("content"), str)
        and all(
            isinstance(value, str) or (name == "tool_calls" and _are_calls(value)) for name, value in message.items()
        )
    )


def _are_calls(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(call, dict) for call in value)
