"""Conversations in a folder: of each what was said, and beside it the KV cache, which may be lost without harm."""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from embedllm import Message

NO_TITLE = "New conversation"
_TITLE_CHARACTERS = 48
_VERSION = 1
_KV_BYTES = 2 << 30  # of all conversations together


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A conversation as it is listed."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    title: str = NO_TITLE
    changed: float = field(default_factory=time.time)  # seconds since 1970
    messages: tuple[Message, ...] = ()

    def with_messages(self, messages: Sequence[Message]) -> Entry:
        """After a turn. The first words of the first message become the title, unless it has one."""
        title = self.title
        if title == NO_TITLE and messages:
            title = " ".join(str(messages[0]["content"]).split())[:_TITLE_CHARACTERS] or NO_TITLE
        return replace(self, title=title, changed=time.time(), messages=tuple(messages))


class Store:
    """The folder. Used by one thread at a time. Only its owner can read what is in it."""

    def __init__(self, folder: Path, *, kv_bytes: int = _KV_BYTES) -> None:
        self.folder = folder
        self._kv_bytes = kv_bytes

    def entries(self) -> tuple[list[Entry], list[str]]:
        """The conversations, the last changed first; and what is wrong with files that hold none."""
        entries, problems = [], []
        for file in self.folder.glob("*.json") if self.folder.is_dir() else ():
            try:
                entries.append(_entry(file))
            except (ValueError, OSError) as error:
                problems.append(str(error))
        return sorted(entries, key=lambda entry: -entry.changed), problems

    def write(self, entry: Entry) -> None:
        """A new file takes the place of the old one in one step. Raises OSError."""
        document = {"version": _VERSION, "title": entry.title, "changed": entry.changed, "messages": entry.messages}
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        number, name = tempfile.mkstemp(dir=self.folder, prefix=f".{entry.id}.")  # for its owner only
        partial = Path(name)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as stream:
                json.dump(document, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, self._file(entry.id))  # noqa: PTH105 # the name that is known for being atomic
        finally:
            partial.unlink(missing_ok=True)

    def rename(self, name: str, title: str) -> None:
        """Another title for a conversation, if it was written. Raises OSError, ValueError."""
        if self._file(name).exists():
            self.write(replace(_entry(self._file(name)), title=title))

    def delete(self, name: str) -> None:
        """Raises OSError."""
        self._file(name).unlink(missing_ok=True)
        self.kv_file(name).unlink(missing_ok=True)

    def kv_file(self, name: str) -> Path:
        """Where Conversation.save() puts the KV of a conversation."""
        return self.folder / f"{name}.safetensors"

    def prune(self) -> None:
        """Deletes the oldest KV files while all of them together are too large. Raises OSError."""
        files = sorted(self.folder.glob("*.safetensors"), key=lambda file: -file.stat().st_mtime)
        room = self._kv_bytes
        for file in files:
            room -= file.stat().st_size
            if room < 0:
                file.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def _entry(file: Path) -> Entry:
    """What a file holds. Raises OSError, ValueError."""
    text = file.read_bytes()
    try:
        document = json.loads(text)
        if document["version"] != _VERSION or not all(map(_is_message, document["messages"])):
            raise ValueError(f"expected messages in version {_VERSION}")
        title, changed = str(document["title"]), float(document["changed"])
        return Entry(id=file.stem, title=title, changed=changed, messages=tuple(document["messages"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"'{file}' holds no conversation and is left as it is: {error}.") from error


def _is_message(message: object) -> bool:
    return (
        isinstance(message, Mapping)
        and message.get("role") in ("system", "user", "assistant", "tool")
        and isinstance(message.get("content"), str)
    )
