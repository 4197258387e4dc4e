"""What aload() tells of its downloads. Standard library only: a program for everywhere may name it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the loading of one file has come."""

    file: str
    loaded: int  # bytes
    total: int  # bytes; 0: not known
    phase: str  # "download", "check" or "compile"
