"""Reads the header of a safetensors file: where each tensor lies. Data is read by whoever needs it, piece by piece.

The safetensors package maps whole files, so a process that streams a model through it is charged with all of it
(resident memory); we need the offsets anyway, to point graphs at them. Format: 8 bytes little-endian length, that
many bytes of JSON, then the data. Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from embedllm.errors import PackageError

BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
         "F32": 4, "I32": 4, "U32": 4, "F64": 8, "I64": 8, "U64": 8}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors package
_MOST_DIMENSIONS = 64  # NumPy's limit


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes, from the start of the file
    length: int  # bytes


@dataclass(frozen=True)
class TensorFile:
    """A checked header."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    text: bytes = field(default=b"", repr=False, compare=False)  # the JSON, as it stands in the file

    @cached_property
    def bounds(self) -> tuple[frozenset[int], frozenset[int]]:
        """Where tensors begin, and where they end."""
        tensors = self.tensors.values()
        return frozenset(t.offset for t in tensors), frozenset(t.offset + t.length for t in tensors)


def read_header(path: Path) -> TensorFile:
    """Where the tensors of a safetensors file lie.

    Raises PackageError when the file is missing, cut off or damaged: every tensor is checked to lie inside the file
    and to have as many bytes as its shape and dtype say, before anybody reads it.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # of this file, whatever has its name now
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise PackageError(
                    f"'{path}' is no whole safetensors file: its header should be {length} bytes long, "
                    f"the file has {size} bytes. Download or export it again."
                )
            text = file.read(length)
            header = json.loads(text)
    except OSError as error:
        raise PackageError(f"cannot read '{path}': {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise PackageError(f"'{path}' is damaged: its header is no JSON ({error}).") from error
    if not isinstance(header, dict):
        raise PackageError(f"'{path}' is damaged: its header is no JSON object.")
    metadata = header.pop("__metadata__", {})
    tensors = {name: _tensor(path, name, entry, 8 + length, size) for name, entry in header.items()}
    _check_apart(path, tensors)
    return TensorFile(tensors, metadata if isinstance(metadata, dict) else {}, text)


def _check_apart(path: Path, tensors: dict[str, Tensor]) -> None:
    """Raises PackageError for tensors that share bytes, which no writer makes: a file that was merged wrongly."""
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].length)):
        if tensor.length and tensor.offset < end:
            raise PackageError(f"'{path}' is damaged: '{name}' begins at byte {tensor.offset}, inside '{before}'.")
        if tensor.length:
            end, before = tensor.offset + tensor.length, name


def _tensor(path: Path, name: str, entry: object, data: int, size: int) -> Tensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[index]
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 63 for n in [*shape, start, stop]):
            raise ValueError("sizes are whole numbers")
        if len(shape) > _MOST_DIMENSIONS:
            raise ValueError("too many dimensions")
        expected = math.prod(shape) * BYTES[dtype]
    except (TypeError, KeyError, ValueError) as error:
        excerpt = reprlib.repr(entry)  # shortened: a number may have thousands of digits, a list millions of items
        raise PackageError(f"'{path}' is damaged: the entry of '{name}' is not understood: {excerpt}.") from error
    if stop - start != expected:
        raise PackageError(f"'{path}' is damaged: '{name}' has {stop - start} bytes; {dtype} {shape} needs {expected}.")
    if data + stop > size:
        raise PackageError(
            f"'{path}' is cut off: '{name}' ends at byte {data + stop}, the file has {size}. "
            "Download or export it again."
        )
    return Tensor(path, dtype, tuple(shape), data + start, expected)
