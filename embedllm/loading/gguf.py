"""A GGUF file as a package folder: exported once into the user's cache, by the hash of what is in it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from embedllm.errors import ExportError

if TYPE_CHECKING:
    from embedllm.files.progress import Progress

    OnProgress = Callable[[Progress], None]

SUFFIX = ".gguf"
_PART = re.compile(r"-\d{5}-of-\d{5}$")  # ends the name of one in parts
_DIGEST = re.compile("[0-9a-f]{64}")
_BLOCK = 1 << 22  # bytes that are hashed at a time


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a GGUF file, there or not."""
    return os.fspath(path).lower().endswith(SUFFIX) and not os.path.isdir(path)  # noqa: PTH112  # is_dir raises


def model_name(file: PurePath) -> str:
    """Of the model that a GGUF file holds, or is a part of."""
    return _PART.sub("", file.stem)


def gguf_package(path: str | os.PathLike[str], on_progress: OnProgress | None = None) -> Path:
    """The package folder of a model in GGUF, whose parts lie beside each other.

    The first time all of it is read to be hashed, and exported by the default options unless it is kept under that
    hash; later its size and times tell that it is the same. Raises ExportError, UnsupportedModel, EmbedError.
    """
    from embedllm.export.gguf.reader import part_files
    from embedllm.loading.export_cache import cached_export, exports_folder

    first = Path(path)
    if not first.is_file():
        raise ExportError(f"there is no file '{first}'; expected a model in GGUF.")
    files = part_files(first)
    try:
        digest = _digest(files, exports_folder().parent / "gguf", on_progress or (lambda _: None))
    except OSError as error:
        raise ExportError(f"cannot read '{error.filename or first}': {error.strerror or error}.") from error

    def make(out: Path) -> None:
        from embedllm.export import convert

        convert(files[0], out, on_progress=on_progress or (lambda _: None))

    return cached_export(model_name(first), {"gguf": digest, "recipe": "default"}, make)


def _digest(files: Sequence[Path], notes: Path, on_progress: OnProgress) -> str:
    """Of all that the files hold. It is noted under what the system says of them, which changes with every writing."""
    from embedllm.files.atomic import atomic_write

    states = [(str(file.resolve()), file.stat()) for file in files]
    told = [(name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in states]
    note = notes / hashlib.sha256(repr(told).encode()).hexdigest()
    with suppress(OSError, UnicodeDecodeError):
        noted = note.read_text(encoding="ascii")
        if _DIGEST.fullmatch(noted):
            return noted
    found = _hashed(files, sum(state.st_size for _, state in states), on_progress)
    if [_times(file) for file in files] == [entry[3:] for entry in told]:  # not while it is being written
        with suppress(OSError):  # it is hashed again the next time
            note.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(note) as file:
                file.write(found.encode("ascii"))
    return found


def _times(file: Path) -> tuple[int, int, int]:
    state = file.stat()
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _hashed(files: Sequence[Path], size: int, on_progress: OnProgress) -> str:
    from embedllm.files.progress import Progress

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
