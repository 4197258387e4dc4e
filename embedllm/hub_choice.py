"""Which files of a repository are the model that is meant: never all variants that lie in it. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal

from embedllm.errors import HubError
from embedllm.hub_name import HubName
from embedllm.package import MANIFEST

Kind = Literal["package", "checkpoint", "gguf"]
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_BESIDE = ("mmproj", "imatrix")  # what else is stored as GGUF: encoders of images, importance matrices
# folders of others, by a file that each has
_OTHERS = {
    "genai_config.json": "an onnxruntime-genai folder",
    "openvino_model.xml": "an OpenVINO model",
    "*.onnx": "ONNX graphs",
    "pytorch_model*.bin": "a checkpoint in pickle files",
}
_SHOWN = 12  # names in an error


@dataclass(frozen=True, slots=True)
class Choice:
    """One model of a repository."""

    kind: Kind
    folder: str = ""  # within the repository, with a slash at its end; "": the repository itself
    files: tuple[str, ...] = ()  # of a GGUF: all its parts, in order


def choose(name: HubName, files: Mapping[str, int | None]) -> Choice:
    """The model that is meant.

    files: those of the repository, with their bytes where they are told.
    A package goes before a checkpoint, and that before a GGUF; in folders only packages are looked for, unless the
    pattern names others. Raises HubError when there is none or several, with what there is.
    """
    meant = _matching(name, files)
    packages = [file for file in meant if PurePosixPath(file).name == MANIFEST]
    if MANIFEST in packages or len(packages) == 1:
        return Choice("package", _folder_of(MANIFEST if MANIFEST in packages else packages[0]))
    if packages:
        folders = [_folder_of(file).rstrip("/") for file in packages]
        raise HubError(f"'{name}' has {len(packages)} packages; name one: {_names(name, folders)}.")
    if not name.pattern and "config.json" in files and any(fnmatchcase(file, "*.safetensors") for file in _top(files)):
        return Choice("checkpoint")
    models = _models(files, set(meant))
    if len(models) == 1:
        return Choice("gguf", files=models[0])
    if models:
        sizes = {model[0]: _size(model, files) for model in models}
        raise HubError(f"'{name}' has {len(models)} GGUF models; name one: {_names(name, list(sizes), sizes)}.")
    raise HubError(_nothing(name, files))


def _matching(name: HubName, files: Iterable[str]) -> list[str]:
    """What a pattern means: whole names, names without their folder, or all that lies in a folder."""
    pattern = name.pattern.rstrip("/")
    if not pattern:
        return sorted(files)
    found = [
        file
        for file in sorted(files)
        if fnmatchcase(file, pattern)
        or fnmatchcase(PurePosixPath(file).name, pattern)
        or any(fnmatchcase(str(folder), pattern) for folder in PurePosixPath(file).parents)
    ]
    if not found:
        near = get_close_matches(pattern.strip("*"), files, n=3, cutoff=0.3)
        offered = f"Near it are: {', '.join(near)}." if near else f"It has: {_listed(sorted(files))}."
        raise HubError(f"no file of '{name.repository}' matches '{name.pattern}'. {offered}")
    return found


def _models(files: Iterable[str], meant: Set[str]) -> list[tuple[str, ...]]:
    """The GGUF models of which a part is meant, each with all its parts. Raises HubError for one that lacks some."""
    found: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for file in sorted(files):
        if not file.lower().endswith(".gguf") or PurePosixPath(file).name.lower().startswith(_BESIDE):
            continue
        part = _PART.fullmatch(file)
        stem = part["stem"] if part else file
        found.setdefault(stem, []).append(file)
        counts[stem] = int(part["count"]) if part else 1
    found = {stem: parts for stem, parts in found.items() if meant & {*parts}}
    for stem, parts in found.items():
        if len(parts) != counts[stem]:
            raise HubError(f"'{stem}' is in {counts[stem]} parts, of which {len(parts)} are there: {_listed(parts)}.")
    return [tuple(parts) for parts in found.values()]


def _nothing(name: HubName, files: Mapping[str, int | None]) -> str:
    here = _matching(name, files)
    others = [
        what
        for pattern, what in _OTHERS.items()
        if any(fnmatchcase(PurePosixPath(file).name, pattern) for file in here)
    ]
    found = f"{' and '.join(others)}, which are not loaded from the hub" if others else _listed(here) or "no files"
    return (
        f"'{name}' has no model that can be loaded: expected {MANIFEST}, or config.json with safetensors, or a GGUF; "
        f"found {found}."
    )


def _names(name: HubName, patterns: Sequence[str], sizes: Mapping[str, str] | None = None) -> str:
    """How each is written in a call."""
    return _listed([f"'{name.repository}:{pattern}'{(sizes or {}).get(pattern, '')}" for pattern in patterns])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _size(model: Iterable[str], files: Mapping[str, int | None]) -> str:
    sizes = [files[file] for file in model]
    return "" if None in sizes else f" ({sum(size or 0 for size in sizes) / 1e9:,.2f} GB)"


def _top(files: Iterable[str]) -> list[str]:
    return [file for file in files if "/" not in file]


def _folder_of(file: str) -> str:
    return file[: file.rfind("/") + 1]
