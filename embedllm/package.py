"""The folder on disk: its manifest, read, checked and described (docs/format.md). Standard library only."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from embedllm.errors import PackageError

if TYPE_CHECKING:
    from embedllm.export.decoder import Decoder

MANIFEST = "embedllm.json"
WEIGHTS = "weights.safetensors"
FORMAT = 1  # of the manifest; a folder with a larger one is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One graph of a folder."""

    file: str
    dialect: str
    activations: str  # "float32" or "float16"; the KV has the same type


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file as it was written."""

    bytes: int
    sha256: str


class Package:
    """An opened folder. The manifest and the presence and size of every file were checked; see check() for hashes."""

    def __init__(self, folder: Path, manifest: Mapping[str, object]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.name = _text(manifest, "name")
        self.files = {name: _file_entry(name, entry) for name, entry in _section(manifest, "files").items()}
        self.graphs = tuple(_graph(entry) for entry in _list(manifest, "graphs"))
        tokens = _section(manifest, "tokens")
        self.stop_tokens = tuple(_integers(tokens, "stop"))
        self.context = _integer(manifest, "context")

    @cached_property
    def decoder(self) -> Decoder:
        from embedllm.export.decoder_json import from_json

        return from_json(self.manifest.get("architecture"))

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS

    def graph(self, dialect: str) -> Graph | None:
        """The folder's graph of this dialect, if it carries one."""
        return next((graph for graph in self.graphs if graph.dialect == dialect), None)

    def check(self) -> None:
        """Reads every file once; PackageError when one differs from what was exported."""
        for name, entry in self.files.items():
            found = sha256(self.folder / name)
            if found != entry.sha256:
                raise PackageError(
                    f"'{self.folder / name}' is damaged: its sha256 is {found}, the manifest says {entry.sha256}. "
                    "Copy or export the folder again."
                )


def open_package(folder: str | os.PathLike[str]) -> Package:
    """Opens a folder that `embedllm export` wrote.

    Raises PackageError when it is missing, damaged, incomplete, newer than this version, or when its manifest names
    files outside of it.
    """
    folder = Path(folder).expanduser()
    path = folder / MANIFEST
    if not path.is_file():
        raise PackageError(_not_a_package(folder))
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PackageError(f"cannot read '{path}': {error}.") from error
    if not isinstance(manifest, dict):
        raise PackageError(f"'{path}' holds a {type(manifest).__name__}; expected a JSON object.")
    version = _integer(manifest, "format")
    if version > FORMAT:
        raise PackageError(
            f"'{folder}' has format {version}; this version of embedllm reads up to {FORMAT}. "
            "Upgrade with: pip install -U embedllm"
        )
    package = Package(folder, manifest)
    for name, entry in package.files.items():
        _check_file(folder, name, entry)
    for graph in package.graphs:
        if graph.file not in package.files:
            raise PackageError(
                f"the manifest of '{folder}' names the graph '{graph.file}' but does not list that file."
            )
    if WEIGHTS not in package.files:
        raise PackageError(f"the manifest of '{folder}' does not list '{WEIGHTS}'.")
    return package


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _not_a_package(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder '{folder}'. Write one with: embedllm export SOURCE {folder}"
    if folder.is_file():
        return f"'{folder}' is a file; expected a folder written by: embedllm export SOURCE OUT"
    if (folder / "config.json").exists():
        return (
            f"'{folder}' is a Hugging Face folder, not an exported one (no {MANIFEST}). "
            f"Export it first: embedllm export {folder} OUT"
        )
    return f"'{folder}' has no {MANIFEST}; expected a folder written by: embedllm export SOURCE OUT"


def _check_file(folder: Path, name: str, entry: FileEntry) -> None:
    path = folder / name
    try:
        size = path.stat().st_size
    except OSError as error:
        raise PackageError(f"'{folder}' is incomplete: cannot read '{name}' ({error.strerror or error}).") from error
    if size != entry.bytes:
        raise PackageError(
            f"'{path}' has {size} bytes; the manifest says {entry.bytes}. Copy or export the folder again."
        )


def _plain(name: str) -> str:
    """A file name that cannot lead out of the folder, on any system."""
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute() or path.drive or ".." in path.parts or not path.parts:
            raise PackageError(f"the manifest names the file '{name}', which lies outside its folder.")
    return name


def _file_entry(name: str, entry: object) -> FileEntry:
    if not isinstance(entry, dict):
        raise PackageError(f"the manifest's entry of '{name}' is {type(entry).__name__}; expected an object.")
    _plain(name)
    return FileEntry(bytes=_integer(entry, "bytes"), sha256=_text(entry, "sha256"))


def _graph(entry: object) -> Graph:
    if not isinstance(entry, dict):
        raise PackageError(f"the manifest's 'graphs' holds a {type(entry).__name__}; expected objects.")
    values = {key: _text(entry, key) for key in ("file", "dialect", "activations")}
    return Graph(file=_plain(values["file"]), dialect=values["dialect"], activations=values["activations"])


def _get(data: Mapping[str, object], key: str, kind: type, expected: str) -> object:
    value = data.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PackageError(f"the manifest's '{key}' is {value!r}; expected {expected}.")
    return value


def _text(data: Mapping[str, object], key: str) -> str:
    return str(_get(data, key, str, "a string"))


def _integer(data: Mapping[str, object], key: str) -> int:
    return int(str(_get(data, key, int, "a whole number")))


def _section(data: Mapping[str, object], key: str) -> dict[str, object]:
    value = _get(data, key, dict, "an object")
    assert isinstance(value, dict)
    return value


def _list(data: Mapping[str, object], key: str) -> list[object]:
    value = _get(data, key, list, "a list")
    assert isinstance(value, list)
    return value


def _integers(data: Mapping[str, object], key: str) -> list[int]:
    values = _list(data, key)
    if not all(type(value) is int for value in values):
        raise PackageError(f"the manifest's '{key}' is {values!r}; expected whole numbers.")
    return [int(str(value)) for value in values]
