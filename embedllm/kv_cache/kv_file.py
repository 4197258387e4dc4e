"""KV in a file: a safetensors file with checksums, whole or not there at all (docs/format.md#kv-files)."""

from __future__ import annotations

import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, chain, pairwise, product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.images import FIRST_ID
from embedllm.errors import PackageError
from embedllm.files.atomic import atomic_write
from embedllm.files.safetensors_header import Tensor, read_header

if TYPE_CHECKING:
    from io import BufferedReader

    from embedllm.backends.base import KeyValues

FORMAT = "embedllm-kv-1"
_TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "I8": np.dtype("i1"), "U8": np.dtype("u1"),
          "U16": np.dtype("<u2")}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}
_NAME = re.compile(r"((?:states\.)?(?:0|[1-9]\d{0,9}))\.\d{1,6}\.(?:key|value)", re.ASCII)  # of a tensor
_STATES = "states."  # begins the names of those of a recurrent model's states
_MOST_TOKENS = 1 << 31  # ids of text
_ALIGNED = 64  # bytes; where tensors begin
_HASH = 64  # letters
_NO_HASH = "0" * _HASH
_NONE: Mapping[int, KeyValues] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file whose header was checked.

    about: what its writer noted. starts: the first token of each piece of KV. kept: positions whose states it has, of a
    recurrent model. tokens: whose KV it is.
    """

    path: Path
    about: Mapping[str, str]
    starts: tuple[int, ...]
    kept: tuple[int, ...]
    tokens: tuple[int, ...]
    tensors: Mapping[str, Tensor]

    def read(self) -> Iterator[KeyValues]:
        """The KV, piece by piece, each checked before it is given. Raises PackageError at the first damaged one."""
        with self.opened() as reader:
            for start in self.starts:
                yield reader.piece(start)

    @contextmanager
    def opened(self) -> Iterator[PieceReader]:
        """Within the block, its pieces in any order: those of now, also when another file takes its place."""
        with self.path.open("rb") as stream:
            yield PieceReader(self, stream)


class PieceReader:
    """Pieces of an open file, each checked before it is given."""

    def __init__(self, file: StateFile, stream: BufferedReader) -> None:
        self._file, self._stream = file, stream

    def piece(self, start: int) -> KeyValues:
        """The piece of KV that begins with a token. Raises PackageError when it is damaged."""
        return self._read(f"{start}", self._file.starts.index(start))

    def states(self, position: int) -> KeyValues:
        """The states behind a position, as write_state() was given them. Raises PackageError when they are damaged."""
        return self._read(f"{_STATES}{position}", len(self._file.starts) + self._file.kept.index(position))

    def _read(self, name: str, place: int) -> KeyValues:
        """place: of its hash."""
        file = self._file
        parts = [tensor for key, tensor in file.tensors.items() if key.startswith(f"{name}.")]
        first, last = parts[0], parts[-1]
        data = np.empty(last.offset + last.length - first.offset, np.uint8)
        view = memoryview(data)  # type: ignore[arg-type]  # NumPy's arrays are buffers; its types say so from 3.12 on
        self._stream.seek(first.offset)
        is_whole = self._stream.readinto(view) == data.size
        if not is_whole or sha256(view).hexdigest() != file.about["pieces"].split()[place]:
            raise PackageError(f"'{file.path}' is damaged: the piece '{name}' differs from its sha256.")
        arrays = [data[t.offset - first.offset :][: t.length].view(_TYPES[t.dtype]).reshape(t.shape) for t in parts]
        return list(zip(arrays[::2], arrays[1::2], strict=True))


def open_state(path: Path) -> StateFile:
    """Raises PackageError for what is no whole file of this format, damaged in its header, or of other tokens.

    A hash without a key tells accidents, not who wrote a file: of one from elsewhere nothing but its form is known.
    """
    tensor_file = read_header(path)
    about = {key: value for key, value in tensor_file.metadata.items() if isinstance(value, str)}
    if (form := about.get("format")) != FORMAT:
        raise PackageError(f"'{path}' has the format {form!r}; this version of embedllm reads '{FORMAT}'.")
    expected = about.get("sha256", "")
    blank = tensor_file.text.replace(f'"sha256": "{expected}"'.encode(), f'"sha256": "{_NO_HASH}"'.encode(), 1)
    if sha256(blank).hexdigest() != expected:
        raise PackageError(f"'{path}' is damaged: its header differs from its sha256.")
    try:
        tokens = _token_ids(about)
        starts, kept = _checked_pieces(tensor_file.tensors, about.get("pieces", "").split(), len(tokens))
    except (ValueError, TypeError, RecursionError) as error:
        raise PackageError(f"'{path}' holds no KV that fits its tokens: {error}.") from error
    return StateFile(path=path, about=about, starts=starts, kept=kept, tokens=tokens, tensors=tensor_file.tensors)


def _token_ids(about: Mapping[str, str]) -> tuple[int, ...]:
    """The tokens that a file notes. Raises ValueError for what is no list of them."""
    token_ids = json.loads(about.get("tokens", "[]"))
    if not isinstance(token_ids, list) or not all(type(token) is int and _is_id(token) for token in token_ids):
        raise ValueError(f"its tokens are {reprlib.repr(token_ids)}; expected a list of token ids")
    return tuple(token_ids)


def _is_id(token: int) -> bool:
    """Of text, or of an image (embedllm/backends/images.py)."""
    return 0 <= token < _MOST_TOKENS or FIRST_ID <= token < 2 * FIRST_ID


def _checked_pieces(
    tensors: Mapping[str, Tensor], hashes: Sequence[str], tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first token of each piece, and the positions that have states.

    Raises ValueError for pieces that do not follow each other, or are not of all.
    """
    names = [_NAME.fullmatch(name) for name in tensors]
    if odd := [name for name, match in zip(tensors, names, strict=True) if match is None]:
        raise ValueError(f"it has a tensor {reprlib.repr(odd[0])}; expected TOKEN.LAYER.key and TOKEN.LAYER.value")
    counts = Counter(match[1] for match in names if match is not None)
    starts = tuple(int(name) for name in counts if not name.startswith(_STATES))
    kept = tuple(int(name.removeprefix(_STATES)) for name in counts if name.startswith(_STATES))
    if len(hashes) != len(counts):
        raise ValueError(f"it has {len(counts)} pieces and {len(hashes)} hashes of them")
    if any(at >= after for at, after in pairwise((0, *kept, tokens + 1))):
        raise ValueError(f"it has the states of {list(kept[:8])}; expected positions in order, 1 to {tokens}")
    if tokens and starts[:1] != (0,):
        raise ValueError(f"its pieces begin at {list(starts[:8])}; expected all of {tokens} tokens, from 0 on")
    listed = iter(tensors.items())
    end = None
    layers = counts[f"{starts[0]}"] // 2 if starts else 0
    pieces = [(f"{start}", stop - start, layers) for start, stop in pairwise((*starts, tokens))]
    pieces += [(f"{_STATES}{at}", 1, counts[f"{_STATES}{at}"] // 2) for at in kept]
    for piece, count, pairs in pieces:
        for layer, part in product(range(pairs), ("key", "value")):
            name, tensor = next(listed, ("nothing", None))
            expected = f"{piece}.{layer}.{part}"
            if tensor is None or name != expected or tensor.dtype not in _TYPES or end not in (None, tensor.offset):
                raise ValueError(f"'{name}' stands where '{expected}' is expected, or is of another type")
            if len(tensor.shape) != 3 or tensor.shape[1] != count:
                raise ValueError(f"'{name}' has the shape {list(tensor.shape)}; expected [heads, {count}, size]")
            end = tensor.offset + tensor.length
    if (left := next(listed, None)) is not None:
        raise ValueError(f"'{left[0]}' is one tensor too many")
    return starts, kept


def write_state(
    path: Path, about: Mapping[str, str], states: Iterable[KeyValues], kept: Mapping[int, KeyValues] = _NONE
) -> None:
    """Writes KV, in pieces of equal length and a last one that may be shorter; replaces what was there.

    about: what is noted besides; must have "tokens", as a JSON list of as many tokens as the pieces have.
    kept: the states of a recurrent model by their positions, in order, each as KV of one token.
    The file is on disk when this returns. Raises OSError; what was there stays then.
    """
    with atomic_write(path, is_private=True) as file:  # what users said is in it
        pieces = iter(states)
        first = next(pieces, None)
        counts = [] if first is None else _counts(len(json.loads(about["tokens"])), first)
        hashes: list[str] = []
        file.write(_header(about, first, counts, kept, [_NO_HASH] * (len(counts) + len(kept))))
        for state in chain([] if first is None else [first], pieces, kept.values()):
            digest = sha256()
            for array in (array for pair in state for array in pair):
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                digest.update(data)
                file.write(data)
            hashes.append(digest.hexdigest())
        file.seek(0)
        file.write(_header(about, first, counts, kept, hashes))


def _counts(tokens: int, first: KeyValues) -> list[int]:
    """How many tokens each piece has."""
    step = first[0][0].shape[1]
    return [min(step, tokens - start) for start in range(0, tokens, step)]


def _header(
    about: Mapping[str, str],
    first: KeyValues | None,
    counts: list[int],
    kept: Mapping[int, KeyValues],
    hashes: list[str],
) -> bytes:
    """Length and JSON; as long for any hashes."""
    metadata = {"format": FORMAT, "sha256": _NO_HASH, **about, "pieces": " ".join(hashes)}
    entries: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    pieces = [(f"{start}", count, first or []) for start, count in zip(accumulate([0, *counts]), counts, strict=False)]
    pieces += [(f"{_STATES}{at}", 1, state) for at, state in kept.items()]
    for piece, count, state in pieces:
        for layer, pair in enumerate(state):
            for part, array in zip(("key", "value"), pair, strict=True):
                shape = [array.shape[0], count, array.shape[2]]
                end = offset + array.itemsize * shape[0] * shape[1] * shape[2]
                kind = _NAMES[array.dtype]
                entries[f"{piece}.{layer}.{part}"] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
                offset = end
    text = json.dumps(entries).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNED)
    text = text.replace(f'"sha256": "{_NO_HASH}"'.encode(), f'"sha256": "{sha256(text).hexdigest()}"'.encode(), 1)
    return len(text).to_bytes(8, "little") + text
