"""The files of a source, opened when they are first read and read from several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from embedllm.errors import ExportError


class OpenFiles:
    """Bytes of any files; each stays open until all are closed."""

    def __init__(self) -> None:
        self._files: dict[Path, BinaryIO] = {}
        self._lock = threading.Lock()

    def read(self, path: Path, offset: int, count: int) -> bytearray:
        """Bytes [offset, offset + count). Raises ExportError where they cannot be read."""
        raw = bytearray(count)
        with self._lock, reading(path):
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = path.open("rb", buffering=0)
            file.seek(offset)
            _read_whole(file, raw, path)
        return raw

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what the system says into an ExportError that names the source's file."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"cannot read '{path}': {error.strerror or error}.") from error


def _read_whole(file: BinaryIO, into: bytearray, path: Path) -> None:
    view = memoryview(into)
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]  # FileIO has it, BinaryIO does not say so
        if not count:
            raise ExportError(f"'{path}' ended while it was read; was it changed during the export?")
        view = view[count:]
