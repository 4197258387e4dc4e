"""Whether the weights on disk are what was exported, and still what was loaded, without reading all of them.

Standard library only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from embedllm.errors import PackageError

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def sampled_sha256(path: Path) -> str:
    """The hash of 64 blocks of 4 KiB, spread evenly over a file from its first to its last byte; of a small one, all.

    In hexadecimal. Finds what is zero, or of another file, for a 64th of it or more; of single bytes it finds few.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        last = os.fstat(file.fileno()).st_size - _SAMPLE_BYTES
        if last <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(file.read())
        else:
            for sample in range(_SAMPLES):
                file.seek(last * sample // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


class LoadedFiles:
    """Files that runtimes have mapped. Later writes change the results; truncation kills the process (SIGBUS)."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Those that are there."""
        self._states = {path: state for path in paths if (state := _state(path)) is not None}

    def check(self) -> None:
        """Raises PackageError for a file that was changed in place since.

        One that was deleted, or replaced by another under its name, is still mapped as it was.
        """
        for path, (identity, was) in self._states.items():
            now = _state(path)
            if now is not None and now[0] == identity and now[1] != was:
                raise PackageError(
                    f"'{path}' was changed while the model is loaded: it has {now[1][0]} bytes and was loaded with "
                    f"{was[0]}, or was written to since. Close the model and load it again; replace files by renaming "
                    "new ones, never in place (docs/security.md#files-that-change)."
                )


def _state(path: Path) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Which file it is, and its size and time."""
    try:
        status = os.stat(path)  # noqa: PTH116  # once a request
    except OSError:
        return None
    return (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)
