"""A Hugging Face checkpoint in a folder as a package folder: exported once into the user's cache, by its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.files.home_path import expanded
from embedllm.package.external.detect import has_graphs
from embedllm.package.package import MANIFEST

if TYPE_CHECKING:
    from embedllm.files.progress import Progress

    OnProgress = Callable[[Progress], None]

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_READ = (".json", ".safetensors", ".jinja", ".txt", ".model", ".tiktoken")  # ends of names of what an export reads
_TRAINING = "checkpoint-"  # begins the folders that a training leaves beside its result


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with config.json and safetensors that nobody has exported yet, in any format."""
    folder = expanded(path)
    try:
        has_weights = any((folder / name).is_file() for name in _WEIGHTS)
        is_exported = (folder / MANIFEST).is_file() or has_graphs(folder)
        return has_weights and (folder / "config.json").is_file() and not is_exported
    except (OSError, ValueError):  # a name that is too long, or has a null
        return False


def _is_of_training(name: str) -> bool:
    """Whether a file lies in a folder that a training left; in the checkpoint's own folder, shards may be named so."""
    return name.startswith(_TRAINING) and "/" in name


def checkpoint_package(path: str | os.PathLike[str], on_progress: OnProgress | None = None) -> Path:
    """The package folder of a checkpoint.

    The first time all of it is read to be hashed, and exported by the default options unless it is kept under that
    hash; later its files' sizes and times tell that they are the same. Raises ExportError, UnsupportedModel,
    EmbedError.
    """
    from embedllm.loading.content_hash import content_hash
    from embedllm.loading.export_cache import cached_export

    folder = Path(path)
    inside = [file for file in (*folder.glob("*"), *folder.glob("*/*")) if file.suffix.lower() in _READ]
    named = {file.relative_to(folder).as_posix(): file for file in inside if file.is_file()}
    names = sorted(name for name in named if not name.startswith(".") and not _is_of_training(name))
    digest = content_hash([named[name] for name in names], "checkpoints", on_progress)

    def make(out: Path) -> None:
        from embedllm.export import convert

        convert(folder, out, on_progress=on_progress or (lambda _: None))

    key = {"checkpoint": digest, "files": hashlib.sha256("\n".join(names).encode()).hexdigest(), "recipe": "default"}
    return cached_export(folder.resolve().name or "model", key, make, whole=True)
