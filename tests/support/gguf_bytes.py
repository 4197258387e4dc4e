"""GGUF files byte by byte, right ones and such as no writer makes."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

F32, STRING, LIST, UINT32 = 0, 8, 9, 4
_NUMBERS = (0, 1, 2, 7, 48, 1 << 16, (1 << 32) - 1, 1 << 63)  # values that metadata may be damaged to


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def number(key: str, value: int) -> bytes:
    return entry(key, UINT32, struct.pack("<I", value))


def texts(key: str, values: Sequence[str], count: int | None = None) -> bytes:
    head = struct.pack("<IQ", STRING, len(values) if count is None else count)
    return entry(key, LIST, head + b"".join(map(text, values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    name: str
    shape: tuple[int, ...] = (2, 32)  # as NumPy's
    type: int = F32
    offset: int = 0

    def head(self) -> bytes:
        dimensions = struct.pack(f"<I{len(self.shape)}Q", len(self.shape), *reversed(self.shape))
        return text(self.name) + dimensions + struct.pack("<IQ", self.type, self.offset)


def file(entries: Sequence[bytes] = (), tensors: Sequence[Tensor] = (), *, data: int = 0, counts: tuple[int, int] | None
         = None, version: int = 3) -> bytes:  # fmt: skip
    """counts: of tensors and entries, where the file is to say others. data: bytes behind the header."""
    found = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, *found) + b"".join(entries) + b"".join(t.head() for t in tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def damaged(rng: random.Random, keys: list[str]) -> dict[str, Any]:
    """Metadata of which one or two values are others, of the right kind or another."""

    def value() -> object:
        return rng.choice([None, rng.choice(_NUMBERS), rng.choice([0.0, -1.5, 1e38, math.inf, math.nan]), "text", True,
                           [1, 2], [0.5] * 307, ["a"] * 307])  # fmt: skip

    return {key: value() for key in rng.sample(keys, rng.randint(1, 2))}
