"""Selects the files of one model in a repository, never all of its variants. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal

from embedllm.errors import HubError
from embedllm.hub.mmproj_files import is_mmproj, preferred
from embedllm.hub.name import HubName
from embedllm.package.package import MANIFEST

Kind = Literal["package", "checkpoint", "gguf", "external"]
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_IMPORTANCE = "imatrix"  # begins the names of what else is stored as GGUF: importance matrices
_GGUFS = "GGUF models"
NO_MMPROJ = "no-mmproj"  # in place of a pattern: the model without its vision encoder
GENAI, _OPENVINO = "genai_config.json", "openvino_model.xml"  # by which folders of others are known
_OPENVINO_WEIGHTS = "openvino_model.bin"
_GRAPHS = "onnx/"  # a folder of graphs, whose model's texts lie beside it
_TEXTS = (".json", ".jinja", ".txt", ".model")  # ends of small files: configurations, tokenizers, templates
_SHOWN = 12  # names in an error


@dataclass(frozen=True, slots=True)
class Choice:
    """One model of a repository."""

    kind: Kind
    folder: str = ""  # within the repository, with a slash at its end; "": the repository itself
    files: tuple[str, ...] = ()  # of a GGUF: all its parts, in order; of a folder of others: what is known to be needed
    graph: str = ""  # of a folder of others with several
    mmproj: str = ""  # of a GGUF: the file of its vision encoder, if there is one
    names_mmproj: bool = False  # that file was asked for

    @property
    def pattern(self) -> str:
        """By which a call can name it."""
        return self.graph or (self.files[0] if self.kind == "gguf" else self.folder.rstrip("/"))


def choose(name: HubName, files: Mapping[str, int | None]) -> Choice:
    """The selected model.

    files: those of the repository, with their sizes where known.
    A package goes before a checkpoint, that before a GGUF, and that before folders of others; a checkpoint is one at
    the top of a repository. Raises HubError when there is none or several of a kind, with what there is.
    """
    request = _requested(name, files)
    meant = request.meant
    for what, choices in (
        ("packages", _packages(meant)),
        ("checkpoints", [] if name.pattern else _checkpoints(files)),
        (_GGUFS, _ggufs(files, request)),
        ("folders of onnxruntime-genai", _folders(GENAI, meant, files)),
        ("OpenVINO models", _folders(_OPENVINO, meant, files)),
        ("ONNX graphs", _graphs(meant, files)),
    ):
        if request.is_of_gguf and what != _GGUFS:
            continue
        if len(choices) == 1 or (choices and not choices[0].folder and choices[0].kind == "package"):
            return choices[0]
        if choices:
            offered = [f"'{name.repository}:{one.pattern}'{_size(one, files)}" for one in choices]
            raise HubError(f"'{name}' has {len(choices)} {what}; name one: {_listed(offered)}.")
    pickled = (
        " (pickled weights are not read)" if any(fnmatchcase(file, "pytorch_model*.bin") for file in files) else ""
    )
    raise HubError(
        f"'{name}' has no model that can be loaded: expected {MANIFEST}, config.json with safetensors, a GGUF, or a "
        f"folder of onnxruntime-genai, OpenVINO or ONNX graphs; found {_listed(meant) or 'no files'}{pickled}."
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """What a name asks for."""

    meant: list[str]  # files of the model, all of a repository's without a pattern
    encoders: list[str]  # one of which is to be its vision encoder; empty: the one that suits it
    takes_encoder: bool

    @property
    def is_of_gguf(self) -> bool:
        """Whether it speaks of a vision encoder's file, which no other kind has."""
        return bool(self.encoders) or not self.takes_encoder


def _requested(name: HubName, files: Iterable[str]) -> _Request:
    """Patterns with commas between them; those that mean vision encoders alone say which of these is taken."""
    meant: list[str] = []
    encoders: list[str] = []
    parts = [part for part in name.pattern.split(",") if part]
    patterns = [part for part in parts if part != NO_MMPROJ]
    for pattern in patterns:
        matches = _matching(name.repository, pattern.rstrip("/"), files)
        (encoders if all(map(is_mmproj, matches)) else meant).extend(matches)
    if encoders and len(patterns) < len(parts):
        raise HubError(f"'{name}' names a vision encoder and asks for none; leave out one of them.")
    return _Request(meant or sorted(files), encoders, takes_encoder=len(patterns) == len(parts))


def _matching(repository: str, pattern: str, files: Iterable[str]) -> list[str]:
    """What a pattern means: whole names, names without their folder, or all that lies in a folder."""
    matches = [
        file
        for file in sorted(files)
        if fnmatchcase(file, pattern)
        or fnmatchcase(PurePosixPath(file).name, pattern)
        or any(fnmatchcase(str(folder), pattern) for folder in PurePosixPath(file).parents)
    ]
    if not matches:
        near = get_close_matches(pattern.strip("*"), files, n=3, cutoff=0.3)
        offered = f"Near it are: {', '.join(near)}." if near else f"It has: {_listed(sorted(files))}."
        raise HubError(f"no file of '{repository}' matches '{pattern}'. {offered}")
    return matches


def _packages(meant: Iterable[str]) -> list[Choice]:
    return [Choice("package", folder) for folder in sorted(_folders_with(MANIFEST, meant))]


def _checkpoints(files: Iterable[str]) -> list[Choice]:
    top = {file for file in files if "/" not in file}
    has_weights = any(file.endswith(".safetensors") for file in top)
    return [Choice("checkpoint")] if "config.json" in top and has_weights else []


def _ggufs(files: Iterable[str], request: _Request) -> list[Choice]:
    """Those of which a part is meant, each with all its parts. Raises HubError for one that lacks some."""
    meant = {*request.meant}
    parts_by_stem: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for file in sorted(files):
        is_importance = PurePosixPath(file).name.lower().startswith(_IMPORTANCE)
        if not file.lower().endswith(".gguf") or is_mmproj(file) or is_importance:
            continue
        part = _PART.fullmatch(file)
        stem = part["stem"] if part else file
        parts_by_stem.setdefault(stem, []).append(file)
        counts[stem] = int(part["count"]) if part else 1
    parts_by_stem = {stem: parts for stem, parts in parts_by_stem.items() if meant & {*parts}}
    for stem, parts in parts_by_stem.items():
        if len(parts) != counts[stem]:
            raise HubError(f"'{stem}' is in {counts[stem]} parts, of which {len(parts)} are there: {_listed(parts)}.")
    named = bool(request.encoders)
    return [
        Choice("gguf", files=tuple(parts), mmproj=_encoder(parts[0], files, request), names_mmproj=named)
        for parts in parts_by_stem.values()
    ]


def _encoder(model: str, files: Iterable[str], request: _Request) -> str:
    """The file of a model's vision encoder: one that is asked for, or lies beside it, or at the top; "": none."""
    if not request.takes_encoder:
        return ""
    encoders = request.encoders
    for folder in (_folder_of(model), ""):
        encoders = encoders or [file for file in files if is_mmproj(file) and _folder_of(file) == folder]
    return preferred(encoders, PurePosixPath(model).name)[0] if encoders else ""


def _folders(marker: str, meant: Iterable[str], files: Iterable[str]) -> list[Choice]:
    """Folders of others, each with its texts and, where that has one name, its graph."""
    choices = []
    for folder in sorted(_folders_with(marker, meant)):
        graph = {folder + _OPENVINO, folder + _OPENVINO_WEIGHTS} if marker == _OPENVINO else set()
        needed = {*_inside(folder, files, *_TEXTS), *(graph & {*files})}
        choices.append(Choice("external", folder, tuple(sorted(needed))))
    return choices


def _graphs(meant: Iterable[str], files: Iterable[str]) -> list[Choice]:
    """ONNX graphs, each with its texts, which lie in its folder, or beside that; not what it keeps in other files."""
    choices = []
    for graph in sorted(meant):
        if graph.endswith(".onnx"):
            folder = _folder_of(graph)
            place = folder.removesuffix(_GRAPHS)
            choices.append(Choice("external", place, (*_inside(place, files, *_TEXTS), graph), graph))
    return choices


def _inside(folder: str, files: Iterable[str], *ends: str) -> list[str]:
    """Files of a folder itself, with such ends of their names."""
    return sorted(file for file in files if _folder_of(file) == folder and file.endswith(ends))


def _folders_with(name: str, files: Iterable[str]) -> set[str]:
    return {_folder_of(file) for file in files if PurePosixPath(file).name == name}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _size(choice: Choice, files: Mapping[str, int | None]) -> str:
    """The download size where it is known; for a graph including files named after it."""
    names = (
        choice.files
        if choice.kind == "gguf"
        else [file for file in files if file.startswith(choice.graph or choice.folder)]
    )
    sizes = [files[file] for file in names]
    return "" if None in sizes else f" ({sum(size or 0 for size in sizes) / 1e9:,.2f} GB)"


def _folder_of(file: str) -> str:
    return file[: file.rfind("/") + 1]
