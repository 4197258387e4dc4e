"""Opens what a model is exported from: a Hugging Face folder, a repository of the hub, or a GGUF file."""

from __future__ import annotations

import os
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.gguf.source import SUFFIX, GgufSource
from embedllm.files.command_line import shell_word
from embedllm.files.home_path import expanded
from embedllm.hub.location import Location, locate
from embedllm.package.package import MANIFEST
from embedllm.text.lone_surrogates import replace_surrogates

Checkpoint = HuggingFaceSource | GgufSource


def open_source(
    source: str | Path | Location, revision: str | None = None, mmproj: Path | bool = True
) -> tuple[Location, Checkpoint]:
    """The place of a source's small files, and the source, which is the caller's to close.

    revision: as locate() has it. mmproj: as GgufSource has it. Raises ExportError, UnsupportedModel, HubError.
    """
    if not isinstance(source, Location):
        path = expanded(source)
        if path.suffix.lower() == SUFFIX and os.path.isfile(path):  # noqa: PTH113  # as does is_file for a long name
            _check_name(path.name)
            reader = GgufSource(path, mmproj)
            return reader.location, reader
    if isinstance(mmproj, Path):
        raise ExportError(
            f"'{source}' is no GGUF file; an mmproj file goes with one. A checkpoint has its own encoder."
        )
    location = locate(source, revision)
    _check_name(location.name)
    if (location.folder / MANIFEST).is_file():
        raise ExportError(
            f"'{source}' is no checkpoint but a folder that was exported from one: it has {MANIFEST}. Load it as it "
            "is, or export its checkpoint or GGUF file; "
            f"'embedllm graph {shell_word(location.folder)} --help' tells how to add graphs."
        )
    return location, HuggingFaceSource(location)


def _check_name(name: str) -> None:
    """Raises ExportError for the name of a source that the manifest could not hold."""
    if replace_surrogates(name) != name:
        raise ExportError(
            f"cannot export {name!r}: its name has a byte that is not UTF-8, and the package's files hold the name as "
            "text. Rename it."
        )
