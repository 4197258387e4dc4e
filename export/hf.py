"""A Hugging Face folder or repository as a source: config.json and safetensors, in one file or in shards."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from embedllm.errors import ExportError, PackageError
from embedllm.tensorfile import BYTES, Tensor, read_header

if TYPE_CHECKING:
    from embedllm.types import F32

TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def locate(source: str | Path) -> Path:
    """The folder of a source: itself, or a repository of the Hugging Face hub, downloaded into its cache.

    Raises ExportError when it is neither.
    """
    path = Path(os.path.expanduser(source))  # noqa: PTH111  # Path.expanduser raises for a user that is not there
    with suppress(OSError):  # a name that is too long, say, is none of a folder
        if path.is_dir():
            return path
        if path.exists():
            raise ExportError(f"'{path}' is a file; expected a folder with config.json and safetensors, or a repo id.")
    if not _REPOSITORY.fullmatch(str(source)):
        raise ExportError(f"there is no folder '{source}', and it is no repo id like 'Qwen/Qwen3-0.6B'.")
    return _download(str(source))


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["config.json", "*.safetensors", "*.safetensors.index.json", "LICENSE*", "README.md", *TEXT_FILES]
    try:
        return Path(snapshot_download(repository, allow_patterns=patterns))
    except Exception as error:  # the client's own, ValueError for the name, or those of whichever HTTP package it uses
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ExportError(
            f"there is no folder '{repository}', and it cannot be downloaded from the Hugging Face hub: {reason}"
        ) from error


class HuggingFaceSource:
    """The tensors of a folder, read row by row into fresh arrays; nothing is mapped, nothing is kept.

    May be read from several threads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / "config.json", "a model's configuration")
        self._tensors = _find_tensors(folder)
        self._files: dict[Path, BinaryIO] = {}
        self._lock = threading.Lock()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless the tensor is here with this shape and a float type."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ExportError(f"'{self.folder}' has no tensor '{name}', which its config.json calls for.")
        if tensor.shape != shape:
            raise ExportError(f"tensor '{name}' is {list(tensor.shape)}; config.json calls for {list(shape)}.")
        if tensor.dtype not in ("F16", "BF16", "F32"):
            raise ExportError(f"tensor '{name}' is {tensor.dtype}; expected F16, BF16 or F32.")

    def rows(self, name: str, start: int, stop: int) -> F32:
        """Rows [start, stop) of a tensor, as float32; of a vector, its values."""
        tensor = self._tensors[name]
        row_values = math.prod(tensor.shape[1:])
        row_bytes = row_values * BYTES[tensor.dtype]
        raw = bytearray((stop - start) * row_bytes)
        with self._lock, reading(tensor.file):
            file = self._files.get(tensor.file)
            if file is None:
                file = self._files[tensor.file] = tensor.file.open("rb", buffering=0)
            file.seek(tensor.offset + start * row_bytes)
            _read_whole(file, raw, tensor)
        return _to_float32(raw, tensor.dtype).reshape(stop - start, *tensor.shape[1:])

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


def read_json(path: Path, what: str) -> dict[str, object]:
    """A JSON object from a file; ExportError says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExportError(f"there is no '{path.name}' in '{path.parent}'; expected {what} there.") from None
    except (ValueError, RecursionError, OSError) as error:
        raise ExportError(f"cannot read '{path}': {error}.") from error
    if not isinstance(data, dict):
        raise ExportError(f"'{path}' holds a {type(data).__name__}; expected a JSON object.")
    return data


def _find_tensors(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        files = [folder / "model.safetensors"]
    elif index.exists():
        weight_map = read_json(index, "the list of shards").get("weight_map")
        if not isinstance(weight_map, dict):
            raise ExportError(f"'{index}' has no 'weight_map' object.")
        for name in weight_map.values():
            if not isinstance(name, str) or name in ("", "..") or Path(name).name != name:
                raise ExportError(f"'{index}' names the shard {name!r}; expected a plain file name.")
        files = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = [p.name for p in sorted(folder.iterdir()) if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".onnx")]
        found = f"found {', '.join(others)}; " if others else ""
        raise ExportError(f"no safetensors in '{folder}'; {found}expected model.safetensors or its shards.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(read_header(file).tensors)
        except PackageError as error:
            raise ExportError(str(error)) from error
    return tensors


def _read_whole(file: BinaryIO, into: bytearray, tensor: Tensor) -> None:
    view = memoryview(into)
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]  # FileIO has it, BinaryIO does not say so
        if not count:
            raise ExportError(f"'{tensor.file}' ended while it was read; was it changed during the export?")
        view = view[count:]


def _to_float32(raw: bytearray, dtype: str) -> F32:
    if dtype == "BF16":  # the upper half of a float32
        return np.left_shift(np.frombuffer(raw, "<u2"), 16, dtype=np.uint32).view(np.float32)
    return np.frombuffer(raw, "<f2" if dtype == "F16" else "<f4").astype(np.float32, copy=False)
