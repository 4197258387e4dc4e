"""The hash of a model's files, made once: its size and times tell later that a file is the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.files.atomic import atomic_write
from embedllm.files.progress import Progress
from embedllm.loading.export_cache import exports_folder

OnProgress = Callable[[Progress], None]

_DIGEST = re.compile("[0-9a-f]{64}")
_BLOCK = 1 << 22  # bytes that are hashed at a time


def content_hash(files: Sequence[Path], kind: str, on_progress: OnProgress | None) -> str:
    """SHA-256 of all that the files hold, noted under what the system says of them, which changes with every writing.

    kind: "gguf" or "checkpoints", the folder of these notes in the user's cache. Raises ExportError.
    """
    try:
        return _note_digest(files, exports_folder().parent / kind, on_progress or (lambda _: None))
    except OSError as error:
        raise ExportError(f"cannot read '{error.filename or files[0]}': {error.strerror or error}.") from error


def _note_digest(files: Sequence[Path], notes: Path, on_progress: OnProgress) -> str:
    states = [(str(file.resolve()), file.stat()) for file in files]
    fingerprints = [(name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in states]
    note = notes / hashlib.sha256(repr(fingerprints).encode()).hexdigest()
    with suppress(OSError, UnicodeDecodeError):
        noted = note.read_text(encoding="ascii")
        if _DIGEST.fullmatch(noted):
            return noted
    digest = _hash(files, sum(state.st_size for _, state in states), on_progress)
    if [_times(file) for file in files] == [entry[3:] for entry in fingerprints]:  # not while it is being written
        with suppress(OSError):  # it is hashed again the next time
            note.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(note) as file:
                file.write(digest.encode("ascii"))
    return digest


def _times(file: Path) -> tuple[int, int, int]:
    state = file.stat()
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _hash(files: Sequence[Path], size: int, on_progress: OnProgress) -> str:
    whole, done = hashlib.sha256(), 0
    for file in files:
        one = hashlib.sha256()
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK):
                one.update(block)
                done += len(block)
                on_progress(Progress("hash", done, size))
        whole.update(one.digest())
    return whole.hexdigest()
