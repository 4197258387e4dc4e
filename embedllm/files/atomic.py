"""Atomic writes: a file appears whole or not at all, and is on disk then. Standard library only."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PARTIAL = ".partial"  # the end of the name of a file that is being written


@contextmanager
def atomic_write(path: Path, *, is_private: bool = False) -> Iterator[IO[bytes]]:
    """A file that takes the place of another at the end of the block, once it is on disk; none if that fails.

    is_private: only its owner can read it, where the system knows such permissions; else the mode of any new file.
    A pipe or a device, /dev/null say, is written to as it is: a file in its place would harm whoever uses it next.
    """
    if _is_special(path):
        with path.open("wb") as file:
            yield file
        return
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with open(partial, "xb", opener=_open_private if is_private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    if os.name == "posix":  # the name too; elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, data: object) -> None:
    """Readable JSON, by an atomic write; as UTF-8, since onnxruntime-genai's parser refuses \\u escapes."""
    with atomic_write(path) as file:
        file.write((json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())


def check_place(path: Path) -> None:
    """Raises ValueError when atomic_write() could not write there: before hours of work."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ValueError(f"cannot write '{path}': it is a folder; expected the name of a file.")
    if not folder.is_dir():
        raise ValueError(f"cannot write '{path}': there is no folder '{folder}'. Make it, or name another.")
    if not os.access(path if _is_special(path) else folder, os.W_OK):
        raise ValueError(f"cannot write '{path}': nothing can be written in '{folder}'. Name another folder.")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
