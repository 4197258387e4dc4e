"""A GGUF file as a package folder: exported once into the user's cache, by the hash of what is in it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from embedllm.errors import ExportError

if TYPE_CHECKING:
    from embedllm.files.progress import Progress

    OnProgress = Callable[[Progress], None]

SUFFIX = ".gguf"
_PART = re.compile(r"-\d{5}-of-\d{5}$")  # ends the name of one in parts


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a GGUF file, there or not."""
    return os.fspath(path).lower().endswith(SUFFIX) and not os.path.isdir(path)  # noqa: PTH112  # is_dir raises


def model_name(file: PurePath) -> str:
    """Of the model that a GGUF file holds, or is a part of."""
    return _PART.sub("", file.stem)


def gguf_package(path: str | os.PathLike[str], on_progress: OnProgress | None = None) -> Path:
    """The package folder of a model in GGUF, whose parts, and vision encoder if it has one, lie beside each other.

    The first time all of it is read to be hashed, and exported by the default options unless it is kept under that
    hash; later its size and times tell that it is the same. Raises ExportError, UnsupportedModel, EmbedError.
    """
    from embedllm.export.gguf.mmproj import mmproj_files
    from embedllm.export.gguf.reader import part_files
    from embedllm.loading.content_hash import content_hash
    from embedllm.loading.export_cache import cached_export

    first = Path(path)
    if not first.is_file():
        raise ExportError(f"there is no file '{first}'; expected a model in GGUF.")
    files = part_files(first)
    # with all that may be its vision encoder: the export finds out which one is
    digest = content_hash([*files, *mmproj_files(files)], "gguf", on_progress)

    def make(out: Path) -> None:
        from embedllm.export import convert

        convert(files[0], out, on_progress=on_progress or (lambda _: None))

    return cached_export(model_name(first), {"gguf": digest, "recipe": "default"}, make, whole=True)
