"""What can go wrong with a path of the tests' server, and what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with a path. Offsets are of the file, whichever range of it is asked for."""

    cut_after: int | None = None  # bytes of a response's body, then the connection ends
    status: int | None = None  # instead of the file
    flip: int | None = None  # the byte at this offset of the file is another one
    no_ranges: bool = False  # the whole file is sent, whatever range is asked for
    hold_after: int | None = None  # bytes of a response's body, then nothing until release(path)
    rate_bytes_s: float | None = None
    times: int | None = None  # requests that it happens to; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One that was answered, or is being answered."""

    method: str
    path: str
    range: str | None
    status: int
    headers: Mapping[str, str]
