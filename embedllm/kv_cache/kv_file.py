"""KV in a file: a safetensors file with checksums, whole or not there at all (docs/format.md#kv-files)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import PackageError
from embedllm.files.atomic import atomic_write
from embedllm.files.safetensors_header import read_header

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues

FORMAT = "embedllm-kv-1"
_TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "I8": np.dtype("i1"), "U8": np.dtype("u1"),
          "U16": np.dtype("<u2")}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}
_ALIGNED = 64  # bytes; where tensors begin
_HASH = 64  # letters
_NO_HASH = "0" * _HASH


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file whose header was checked.

    about: what its writer noted. starts: the first token of each piece of KV.
    """

    path: Path
    about: Mapping[str, str]
    starts: tuple[int, ...]

    def read(self) -> Iterator[KeyValues]:
        """The KV, piece by piece, each checked before it is given. Raises PackageError at the first damaged one."""
        tensors = read_header(self.path).tensors
        hashes = self.about["pieces"].split()
        with self.path.open("rb") as file:
            for start, expected in zip(self.starts, hashes, strict=True):
                names = [name for name in tensors if name.startswith(f"{start}.")]
                first, last = tensors[names[0]], tensors[names[-1]]
                data = np.empty(last.offset + last.length - first.offset, np.uint8)
                view = memoryview(data)  # type: ignore[arg-type]  # NumPy's arrays are buffers; its types say so from 3.12 on
                file.seek(first.offset)
                if file.readinto(view) != data.size or sha256(view).hexdigest() != expected:
                    raise PackageError(f"'{self.path}' is damaged: tokens from {start} on differ from their sha256.")
                arrays = [
                    data[t.offset - first.offset :][: t.length].view(_TYPES[t.dtype]).reshape(t.shape)
                    for t in (tensors[name] for name in names)
                ]
                yield list(zip(arrays[::2], arrays[1::2], strict=True))


def open_state(path: Path) -> StateFile:
    """Raises PackageError for what is no whole file of this format, or damaged in its header."""
    found = read_header(path)
    about = {key: value for key, value in found.metadata.items() if isinstance(value, str)}
    if (form := about.get("format")) != FORMAT:
        raise PackageError(f"'{path}' has the format {form!r}; this version of embedllm reads '{FORMAT}'.")
    with path.open("rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
    expected = about.get("sha256", "")
    blank = header.replace(f'"sha256": "{expected}"'.encode(), f'"sha256": "{_NO_HASH}"'.encode(), 1)
    if sha256(blank).hexdigest() != expected:
        raise PackageError(f"'{path}' is damaged: its header differs from its sha256.")
    starts = tuple(dict.fromkeys(int(name.partition(".")[0]) for name in found.tensors))
    return StateFile(path=path, about=about, starts=starts)


def write_state(path: Path, about: Mapping[str, str], states: Iterable[KeyValues]) -> None:
    """Writes KV, in pieces of equal length and a last one that may be shorter; replaces what was there.

    about: what is noted besides; must have "tokens", as a JSON list of as many tokens as the pieces have.
    The file is on disk when this returns. Raises OSError; what was there stays then.
    """
    with atomic_write(path, is_private=True) as file:  # what users said is in it
        pieces = iter(states)
        first = next(pieces, None)
        counts = [] if first is None else _counts(len(json.loads(about["tokens"])), first)
        hashes: list[str] = []
        file.write(_header(about, first, counts, [_NO_HASH] * len(counts)))
        for state in chain([] if first is None else [first], pieces):
            digest = sha256()
            for array in (array for pair in state for array in pair):
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                digest.update(data)
                file.write(data)
            hashes.append(digest.hexdigest())
        file.seek(0)
        file.write(_header(about, first, counts, hashes))


def _counts(tokens: int, first: KeyValues) -> list[int]:
    """How many tokens each piece has."""
    step = first[0][0].shape[1]
    return [min(step, tokens - start) for start in range(0, tokens, step)]


def _header(about: Mapping[str, str], first: KeyValues | None, counts: list[int], hashes: list[str]) -> bytes:
    """Length and JSON; as long for any hashes."""
    metadata = {"format": FORMAT, "sha256": _NO_HASH, **about, "pieces": " ".join(hashes)}
    entries: dict[str, object] = {"__metadata__": metadata}
    start = offset = 0
    for count in counts:
        for layer, pair in enumerate(first or []):
            for part, array in zip(("key", "value"), pair, strict=True):
                shape = [array.shape[0], count, array.shape[2]]
                end = offset + array.itemsize * shape[0] * shape[1] * shape[2]
                kind = _NAMES[array.dtype]
                entries[f"{start}.{layer}.{part}"] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
                offset = end
        start += count
    text = json.dumps(entries).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNED)
    text = text.replace(f'"sha256": "{_NO_HASH}"'.encode(), f'"sha256": "{sha256(text).hexdigest()}"'.encode(), 1)
    return len(text).to_bytes(8, "little") + text
