"""The layout of weights.safetensors, and the writer that fills it from start to end.

The whole layout follows from the description before a byte is read, so the header is written first and the data
streams behind it: one pass, hashed on the way. Tensors that a graph may use as one (q, k and v; gate and up; their
scales) lie next to each other without a gap. Larger runs start at multiples of 4096 bytes (pages), smaller ones at
64; the gaps are entries too, because the safetensors reader refuses a file that is not covered.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.files.safetensors_header import BYTES
from embedllm.package.graph_variants import OPENVINO, OPENVINO_LATENT, VISION_OPENVINO
from embedllm.package.package import WEIGHTS

if TYPE_CHECKING:
    import numpy as np

CONSTANTS = "openvino.constants"  # shapes and numbers of the OpenVINO model, which has no other place for them
LATENT_CONSTANTS = "openvino.latent.constants"  # of that which keeps the latents of MLA
VISION_CONSTANTS = "openvino.vision.constants"  # the same of a vision encoder's
# by the variant that reads them
CONSTANTS_OF = {OPENVINO: CONSTANTS, OPENVINO_LATENT: LATENT_CONSTANTS, VISION_OPENVINO: VISION_CONSTANTS}
PAGE = 4096  # bytes
_LARGE = 1 << 16  # bytes; from here on a run starts at a page


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor to be stored."""

    name: str
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry with its place; offset in bytes from the start of the file."""

    entry: Entry
    offset: int
    file: str = WEIGHTS


@dataclass(frozen=True, slots=True)
class Layout:
    """Every entry in file order, the gaps among them, and the header that says so."""

    header: bytes
    placed: dict[str, Placed]
    size: int  # bytes of the whole file

    def span(self, names: Sequence[str]) -> tuple[int, int]:
        """(offset, length) of entries that lie next to each other; ValueError when they don't."""
        first = end = self.placed[names[0]].offset
        for name in names:
            place = self.placed[name]
            if place.offset != end:
                raise ValueError(f"'{name}' starts at byte {place.offset}, not at {end} behind its neighbour.")
            end += place.entry.length
        return first, end - first

    def are_neighbours(self, names: Sequence[str]) -> bool:
        """Whether entries lie next to each other."""
        places = [self.placed[name] for name in names]
        return all(one.offset + one.entry.length == after.offset for one, after in pairwise(places))


def lay_out(runs: Sequence[Sequence[Entry]], metadata: dict[str, str]) -> Layout:
    """Places runs of entries one after another; inside a run there are no gaps."""
    entries: list[Entry] = []
    offset = 0
    for run in runs:
        length = sum(entry.length for entry in run)
        gap = -offset % (PAGE if length >= _LARGE else 64)
        if gap:
            entries.append(Entry(f"gap.{len(entries)}", "U8", (gap,)))
        entries += run
        offset += gap + length
    header: dict[str, object] = {"__metadata__": metadata}
    start = 0
    for entry in entries:
        end = start + entry.length
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, end]}
        start = end
    if len(header) != len(entries) + 1:
        raise ValueError("two entries have the same name")
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % PAGE)
    placed: dict[str, Placed] = {}
    offset = 8 + len(text)
    for entry in entries:
        placed[entry.name] = Placed(entry, offset)
        offset += entry.length
    return Layout(len(text).to_bytes(8, "little") + text, placed, offset)


class Writer:
    """Writes a layout's data in file order and hashes it; the gaps are filled in between."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        self._file = path.open("wb")
        self._hash = hashlib.sha256()
        self._order = list(layout.placed.values())
        self._next = 0  # index of the entry that is being written
        self._left = 0  # bytes that it still lacks
        try:
            self._put(layout.header)
            self._advance()
        except BaseException:
            self._file.close()
            raise

    def write(self, name: str, data: bytes | memoryview | np.ndarray) -> None:
        """The next bytes of entry `name`; ValueError when another entry is due or the entry would overflow."""
        view = memoryview(data if isinstance(data, bytes | memoryview) else data.data)
        if not view.nbytes:
            return
        view = view.cast("B")
        due = self._order[self._next].entry.name if self._next < len(self._order) else "the end"
        if due != name or view.nbytes > self._left:
            raise ValueError(f"{view.nbytes} bytes of '{name}' came where {self._left} bytes of '{due}' are due.")
        self._put(view)
        self._left -= view.nbytes
        if not self._left:
            self._next += 1
            self._advance()

    def finish(self) -> str:
        """Makes the file durable; returns its sha256. ValueError when entries are missing."""
        if self._next < len(self._order):
            raise ValueError(f"entry '{self._order[self._next].entry.name}' was not written to its end.")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._hash.hexdigest()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)

    def _advance(self) -> None:
        """Goes to the next entry that a caller has to give: fills gaps, passes by what is empty."""
        while self._next < len(self._order):
            entry = self._order[self._next].entry
            self._left = entry.length
            if entry.name.startswith("gap."):
                self._put(bytes(entry.length))
            elif entry.length:
                return
            self._next += 1
