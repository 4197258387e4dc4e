"""Blocks of KV on disk, one file per block named by its key, within a budget; safe for concurrent processes."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import EmbedError, PackageError
from embedllm.files.atomic import PARTIAL
from embedllm.kv_cache.kv_file import open_state, write_state

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues

_SUFFIX = ".safetensors"
_OURS = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}(.*{re.escape(PARTIAL)})?")  # all that is ours to remove
_LEFT_BEHIND_S = 3600.0  # a file that has been written for so long was left by a process that ended
_log = logging.getLogger("embedllm")


class DiskStore:
    """The files of one folder, of any model and device; a key is of one of each.

    A file is written under another name, put on disk and then renamed; after that it never changes. Whoever trims the
    folder while another reads takes nothing but time from it.
    """

    def __init__(self, folder: Path, *, budget_bytes: int) -> None:
        """Raises EmbedError when the folder cannot be made."""
        self._folder = folder
        self._budget_bytes = budget_bytes
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what users said is in it
        except OSError as error:
            raise EmbedError(
                f"cannot make the cache_dir '{folder}': {error.strerror or error}. Give another folder."
            ) from error

    def has(self, key: bytes) -> bool:
        return self._path(key).is_file()

    def read(self, key: bytes, tokens: Sequence[int]) -> KeyValues | None:
        """The KV of a block; None when it is gone, or damaged, which makes room for another."""
        path = self._path(key)
        try:
            file = open_state(path)
            if file.tokens != tuple(tokens):
                raise PackageError(f"'{path}' is of other tokens than its name says.")
            (state,) = file.read()
        except (PackageError, OSError, KeyError, ValueError) as error:
            if path.exists():  # else another process has dropped it
                _log.info("a file of the prefix cache is not used and removed: %s", error)
                with suppress(OSError):
                    path.unlink()
            return None
        return state

    def write(self, key: bytes, tokens: Sequence[int], state: KeyValues, about: Mapping[str, str]) -> None:
        """Writes a block, unless another process was first."""
        path = self._path(key)
        if path.exists():
            return
        try:
            write_state(path, {"tokens": json.dumps(list(tokens)), **about}, [state])
        except OSError as error:
            _log.info("the prefix cache could not be written: %s", error)

    def used(self, keys: Sequence[bytes]) -> None:
        """Notes that a chain of blocks was used; of a chain the last ones go first."""
        for key in reversed(keys):
            with suppress(OSError):
                os.utime(self._path(key))

    def trim(self) -> None:
        """Removes the files used least recently, as many as the budget asks for, and what dead processes left."""
        files: list[tuple[int, int, str]] = []
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name) is None:
                    continue
                with suppress(OSError):
                    status = entry.stat()
                    if entry.name.endswith(_SUFFIX):
                        files.append((status.st_mtime_ns, status.st_size, entry.path))
                    elif time.time() - status.st_mtime > _LEFT_BEHIND_S:
                        os.unlink(entry.path)  # noqa: PTH108  # an entry of scandir
        surplus = sum(size for _, size, _ in files) - self._budget_bytes
        for _, size, path in sorted(files):
            if surplus <= 0:
                return
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108
                surplus -= size

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}{_SUFFIX}"
