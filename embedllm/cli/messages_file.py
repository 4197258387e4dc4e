"""A conversation in a file: a JSON list of messages, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import EmbedError
from embedllm.files.atomic import atomic_write
from embedllm.files.home_path import expanded

if TYPE_CHECKING:
    from embedllm.text.chat_template import Message

_ESCAPED = re.compile(r"\\(.)")


def read_messages(path: Path) -> list[Message]:
    """The messages of a file. Raises EmbedError when it holds something else."""
    path = expanded(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EmbedError(f"cannot read '{path}': {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise EmbedError(f"'{path}' is not JSON ({error}); expected a list of messages.") from error
    if not isinstance(data, list) or not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in data
    ):
        raise EmbedError(f'\'{path}\' is not a list of messages with "role" and "content".')
    return data


def write_messages(path: Path, messages: Sequence[Message]) -> None:
    """Puts the messages into a file that only its owner can read.

    Raises EmbedError when it cannot be written, and for an existing file that holds something else: that stays.
    """
    path = expanded(path).resolve()
    if path.exists():
        try:
            read_messages(path)
        except EmbedError as error:
            raise EmbedError(f"{error} It is not overwritten; choose another name.") from error
    text = json.dumps(list(messages), ensure_ascii=False, indent=1) + "\n"
    try:
        with atomic_write(path, is_private=True) as file:
            file.write(text.encode())
    except OSError as error:
        raise EmbedError(f"cannot write '{path}': {error.strerror or error}.") from error


def typed_path(name: str) -> Path:
    """A path as it is typed, or as terminals paste a file that is dropped on them: in quotes, or with backslashes."""
    given = expanded(Path(name))
    if os.path.exists(given):  # noqa: PTH110  # Path.exists raises for a name that is too long
        return given
    if name[:1] in ("'", '"') and name[:1] == name[1:][-1:]:
        return expanded(Path(name[1:-1]))
    return expanded(Path(_ESCAPED.sub(r"\1", name))) if os.name != "nt" else given
