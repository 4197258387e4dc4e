"""A model in GGUF, in one file or in parts: what is said of it, and where each tensor lies, all within the files."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.gguf.header import GgufFile, GgufTensor, read_gguf
from embedllm.export.gguf.types import TYPES

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A tensor and the bytes that it has in a file."""

    file: Path
    shape: tuple[int, ...]
    type: int  # a key of gguf_types.TYPES
    offset: int  # bytes, from the start of the file
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """All parts of a model together."""

    path: Path  # the first part
    files: tuple[Path, ...]
    metadata: dict[str, object]  # of the first part
    tensors: dict[str, Placed]


def read_model(path: Path) -> GgufModel:
    """A model by its file, or by any of its parts, which lie in one folder as NAME-00001-of-00003.gguf.

    Raises ExportError for a part that is missing, damaged or another model's, for a tensor that is there twice, whose
    type is unknown, or that lies outside of its file or on another one.
    """
    files = part_files(path)
    headers = [read_gguf(file) for file in files]
    first = headers[0].metadata
    if len(files) == 1 and first.get(_COUNT, 1) not in (0, 1):
        raise ExportError(
            f"'{path}' is one of {first[_COUNT]} parts of a model; expected names like "
            "NAME-00001-of-00003.gguf, by which the others are found. Rename them as they were."
        )
    tensors: dict[str, Placed] = {}
    for number, header in enumerate(headers):
        _check_part(header, number, len(files))
        for name, tensor in _place_tensors(header).items():
            if name in tensors:
                raise ExportError(f"'{header.path}' and '{tensors[name].file}' both have a tensor '{name}'.")
            tensors[name] = tensor
    expected = first.get(_TENSORS)
    if len(files) > 1 and expected is not None and expected != len(tensors):
        raise ExportError(
            f"the parts of '{files[0]}' have {len(tensors)} tensors; expected {expected}. Download them again."
        )
    return GgufModel(path=files[0], files=tuple(files), metadata=first, tensors=tensors)


def part_files(path: Path) -> list[Path]:
    """The files of a model. Names are made of the one that is given: none is taken from within a file.

    Raises ExportError where one is missing.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, number, count = match[1], int(match[2]), int(match[3])
    if not 1 <= number <= count:
        raise ExportError(f"'{path}' is part {number} of {count} by its name; expected 1 to {count}.")
    files = [path.with_name(f"{stem}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]
    lacking = [file.name for file in files if not file.is_file()]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ExportError(f"'{lacking[0]}'{more} of {count} parts is not in '{path.parent}'; put all parts there.")
    return files


def _check_part(header: GgufFile, number: int, count: int) -> None:
    part = (header.metadata.get(_NUMBER, 0), header.metadata.get(_COUNT, 1))
    if count > 1 and part != (number, count):
        raise ExportError(
            f"'{header.path}' says that it is part {part[0]} (counted from 0) of {part[1]}; expected {number} of "
            f"{count} by its name. Do the parts belong together?"
        )


def _place_tensors(header: GgufFile) -> dict[str, Placed]:
    """Every tensor with its bytes, which lie in the file and apart from the others'."""
    tensors = {name: _measure(header, name, tensor) for name, tensor in header.tensors.items()}
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise ExportError(f"'{header.path}': the tensors '{before}' and '{name}' lie on each other. Make it again.")
        end, before = tensor.offset + tensor.bytes, name
    return tensors


def _measure(header: GgufFile, name: str, tensor: GgufTensor) -> Placed:
    kind, place = TYPES.get(tensor.type), f"'{header.path}': tensor '{name}'"
    if kind is None:
        raise ExportError(f"{place} is of type {tensor.type}, which is not known here; known: "
                          f"{', '.join(each.name for each in TYPES.values())}.")  # fmt: skip
    count = math.prod(tensor.shape)
    if not tensor.shape or count < 1 or tensor.shape[-1] % kind.values:
        raise ExportError(f"{place} is {kind.name} {list(tensor.shape)}; expected rows of whole blocks of "
                          f"{kind.values} values.")  # fmt: skip
    size = count // kind.values * kind.bytes
    if tensor.offset + size > header.bytes:
        raise ExportError(
            f"{place} has {size} bytes at byte {tensor.offset}; the file has {header.bytes}. Is it whole? Get it again."
        )
    return Placed(file=header.path, shape=tensor.shape, type=tensor.type, offset=tensor.offset, bytes=size)
