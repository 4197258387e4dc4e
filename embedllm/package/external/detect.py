"""Folders that other exporters wrote, opened as they are: which kind one is, and a Package made of it in memory.

Nothing is written into them. A folder with a manifest of ours is never read as one (embedllm/package/package.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.package.architecture_json import to_json
from embedllm.package.external.types import Reading
from embedllm.package.links import link_fault

if TYPE_CHECKING:
    from embedllm.package.entries import FileEntry

LOOKED_FOR = "genai_config.json, onnx/model*.onnx, model*.onnx and openvino_model.xml"
_KEPT_APART = ("onnx",)  # folders of graphs inside a model's folder
_ITS_TEXTS = ("genai_config.json", "config.json", "tokenizer.json")


def read_external(path: Path) -> Reading | None:
    """What is at a path, a folder or one of its graphs; None when nothing is known there.

    Raises PackageError for what is known and cannot be run.
    """
    from embedllm.package.external import genai_folder, onnx_folder, openvino_folder

    root = _root(path)
    if fault := link_fault(root):
        raise PackageError(fault)
    chosen = path if path.is_file() else None
    for kind in (genai_folder, onnx_folder, openvino_folder):
        if (reading := kind.read(root, chosen)) is not None:
            return reading
    return None


def has_graphs(folder: Path) -> bool:
    """Whether there is what read_external() looks for, by the names alone."""
    patterns = ("genai_config.json", "onnx/model*.onnx", "model*.onnx", "openvino_model.xml")
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def manifest_of(reading: Reading) -> dict[str, object]:
    """What a manifest would say of it. Raises PackageError for files outside of the folder, or missing."""
    files = {_name(path, reading): _entry(path) for path in (reading.graph, *reading.weights)}
    graph = {"file": _name(reading.graph, reading), "variant": reading.variant, "activations": reading.activations}
    return {
        "name": reading.root.resolve().name,
        "files": files,
        "graphs": [graph],
        "tokens": {"stop": reading.stop_tokens},
        "context": reading.described.context,
        "architecture": to_json(reading.described),
    }


def stored(files: Mapping[str, FileEntry]) -> tuple[int, str]:
    """Bytes of a folder's graph and weights, and what tells them from others."""
    text = json.dumps([(name, entry.bytes, entry.sha256) for name, entry in sorted(files.items())])
    return sum(entry.bytes for entry in files.values()), hashlib.sha256(text.encode()).hexdigest()


def _root(path: Path) -> Path:
    """The folder that the texts are in: its own, or the one that holds it."""
    folder = path.parent if path.is_file() else path
    has_texts = any((folder / name).is_file() for name in _ITS_TEXTS)
    return folder.parent if folder.name in _KEPT_APART and not has_texts else folder


def _name(path: Path, reading: Reading) -> str:
    try:
        return path.relative_to(reading.root).as_posix()
    except ValueError as error:
        raise PackageError(f"'{reading.graph}' names the file '{path}', which is outside of its folder.") from error


def _entry(path: Path) -> dict[str, object]:
    """A file as it is now. In place of a hash of its bytes, all of which it takes to make, stand its size and time."""
    try:
        status = path.stat()
    except OSError as error:
        raise PackageError(
            f"cannot read '{path}' ({error.strerror or error}), which the graph's weights lie in. Fetch that file too."
        ) from error
    text = f"{path.name} {status.st_size} {status.st_mtime_ns}"
    return {"bytes": status.st_size, "sha256": hashlib.sha256(text.encode()).hexdigest()}
