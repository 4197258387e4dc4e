"""Hashes of a file's blocks, by which a web page checks a download while it comes: browsers hash whole blocks only.

A hash list: `root` is the sha256 of the hashes one behind the other, and names what was checked by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.package.manifest_fields import integer_of, list_of, text_of

BLOCK = 8 << 20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlocks:
    """The blocks of a file; the last may have fewer bytes."""

    bytes: int  # of a block
    sha256: tuple[str, ...]  # in hexadecimal, of each block
    root: str

    def as_json(self) -> dict[str, object]:
        """As it stands in a manifest."""
        return {**asdict(self), "sha256": list(self.sha256)}


def file_blocks(path: Path) -> FileBlocks | None:
    """The hashes of a file's blocks; None of a file that has but one."""
    if path.stat().st_size <= BLOCK:
        return None
    hashes = tuple(_hashes(path))
    return FileBlocks(bytes=BLOCK, sha256=hashes, root=_root(hashes))


def read_blocks(entry: dict[str, object], where: str, size: int) -> FileBlocks:
    """Those that a manifest lists of a file of `size` bytes. Raises PackageError."""
    blocks = FileBlocks(
        bytes=integer_of(entry, "bytes", where, least=1),
        sha256=tuple(str(one) for one in list_of(entry, "sha256", where)),
        root=text_of(entry, "root", where),
    )
    expected = -(-size // blocks.bytes)
    if len(blocks.sha256) != expected:
        raise PackageError(f"{where} there are {len(blocks.sha256)} hashes of blocks; expected {expected}.")
    return blocks


def _hashes(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield hashlib.sha256(block).hexdigest()


def _root(hashes: tuple[str, ...]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, hashes))).hexdigest()
