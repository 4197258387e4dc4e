"""Reads the header of a GGUF file: its metadata, and where each tensor lies.

Numbers are little-endian; a string is its length (u64) and UTF-8. Header: "GGUF", version (u32), counts of tensors and
of metadata (u64 each); then metadata (key, type, value), then for each tensor its name, dimensions, type and offset.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from embedllm.errors import ExportError

F32 = 0  # the type of a tensor of float32
_MAGIC, _VERSIONS, _BIG_ENDIAN = b"GGUF", (2, 3), (2 << 24, 3 << 24)
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_FLOAT32, _STRING, _LIST = 6, 8, 9  # types of metadata
_LONGEST_TEXT, _MOST_DIMENSIONS, _DEEPEST = 1 << 26, 4, 4  # a whole tokenizer.json can be one text
_LARGEST_HEADER = 1 << 27  # bytes; the largest vocabularies take a quarter of it, and what is read is kept in memory
_LARGEST_ALIGNMENT = 1 << 20
_LEAST = 8  # bytes of a value that is no number: the length of a string
_ALIGNMENT = 32  # bytes, unless the metadata says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor of a file."""

    shape: tuple[int, ...]  # as NumPy's: what lies together last
    type: int  # F32 = 0; others as ggml counts them
    offset: int  # bytes, from the start of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A header."""

    path: Path
    bytes: int  # of the whole file
    metadata: dict[str, object]  # numbers, strings, and lists: NumPy arrays of numbers, Python's of all else
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file. Raises ExportError for one that is missing, cut off, damaged or another thing."""
    try:
        with path.open("rb") as file:
            return _Reader(path, file, path.stat().st_size).header()
    except OSError as error:
        raise ExportError(f"cannot read '{path}': {error.strerror or error}.") from error


class _Reader:
    """A file and its place in it. Nothing is read that the file is too short for."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size

    def header(self) -> GgufFile:
        start = self._file.read(4)
        if start != _MAGIC:
            raise ExportError(f"'{self._path}' is no GGUF file: it begins with {start!r}; expected {_MAGIC!r}.")
        with self._naming_part("its version"):
            version = self._number("<I")
        if version in _BIG_ENDIAN:
            raise ExportError(
                f"'{self._path}' is big-endian GGUF, for other processors; expected little-endian. Download that "
                "one, or convert it with gguf-convert-endian of the Python package gguf."
            )
        if version not in _VERSIONS:
            raise ExportError(f"'{self._path}' is GGUF of version {version}; expected 2 or 3, little-endian.")
        with self._naming_part("its counts"):
            tensors, entries = self._number("<Q"), self._number("<Q")
        metadata: dict[str, object] = {}
        for _ in range(entries):
            with self._naming_part("its metadata"):
                name = self._fresh(metadata)
                metadata[name] = self._value(self._number("<I"))
        infos: dict[str, GgufTensor] = {}
        for _ in range(tensors):
            with self._naming_part("its list of tensors"):
                name = self._fresh(infos)
                infos[name] = self._tensor()
        with self._naming_part("its alignment"):
            data = _align(self._file.tell(), metadata.get("general.alignment", _ALIGNMENT))
        moved = {name: GgufTensor(shape=t.shape, type=t.type, offset=data + t.offset) for name, t in infos.items()}
        return GgufFile(path=self._path, bytes=self._size, metadata=metadata, tensors=moved)

    @contextmanager
    def _naming_part(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, struct.error) as error:  # UnicodeDecodeError is one
            raise ExportError(f"'{self._path}' is damaged or cut off in {what} ({error}). Make it again.") from error

    def _fresh(self, entries: Mapping[str, object]) -> str:
        """The next name, which has not been there."""
        name = self._text()
        if name in entries:
            raise ValueError(f"{reprlib.repr(name)} is there twice")
        return name

    def _check(self, count: int) -> None:
        place = self._file.tell()
        if count > self._size - place:
            raise ValueError(f"{count} bytes more are needed at byte {place}, the file has {self._size}")
        if place + count > _LARGEST_HEADER:
            raise ValueError(f"a header of more than {_LARGEST_HEADER} bytes")

    def _read(self, count: int) -> bytes:
        self._check(count)
        return self._file.read(count)

    def _number(self, kind: str) -> int:
        return struct.unpack(kind, self._read(struct.calcsize(kind)))[0]

    def _text(self) -> str:
        length = self._number("<Q")
        if length > _LONGEST_TEXT:
            raise ValueError(f"a string of {length} bytes")
        return self._read(length).decode("utf-8")

    def _value(self, kind: int, depth: int = 0) -> object:
        if kind in _NUMBERS:
            number = self._number(_NUMBERS[kind])
            return shortest(number) if kind == _FLOAT32 else number
        if kind == _STRING:
            return self._text()
        if kind != _LIST or depth == _DEEPEST:
            raise ValueError(f"a value of type {kind}")
        inner, count = self._number("<I"), self._number("<Q")
        if inner in _NUMBERS:
            return self._numbers(_NUMBERS[inner], count)
        self._check(count * _LEAST)
        return [self._value(inner, depth + 1) for _ in range(count)]

    def _numbers(self, kind: str, count: int) -> np.ndarray:
        return np.frombuffer(self._read(count * struct.calcsize(kind)), np.dtype(kind))

    def _tensor(self) -> GgufTensor:
        dimensions = self._number("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
        if math.prod(shape) > self._size * 8:  # no type takes less than a bit
            raise ValueError(f"a tensor {list(shape)}")
        return GgufTensor(shape=shape, type=self._number("<I"), offset=self._number("<Q"))


def shortest(value: float) -> float:
    """The number with the fewest digits that is this one in 32 bits: what config.json has, 1e-06 for 9.99999997e-07."""
    return float(str(np.float32(value)))


def _align(place: int, alignment: object) -> int:
    if type(alignment) is not int or not 0 < alignment <= _LARGEST_ALIGNMENT:
        raise ValueError(f"{alignment!r}")
    return -(-place // alignment) * alignment
