"""Files in parts, in copies of a folder for web servers that limit the size of a file (docs/format.md#parts)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.package.manifest_fields import integer_of, list_of, plain_name, section_of, text_of, wrong

PARTS = "parts"  # the manifest's key


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of a file's bytes, as a file of their own."""

    file: str
    bytes: int
    sha256: str


def read_parts(manifest: Mapping[str, object], sizes: Mapping[str, int]) -> dict[str, tuple[Part, ...]]:
    """The parts of each file that lies in parts, in their order; empty for a folder whose files are whole.

    sizes: bytes of the files that the manifest lists. Raises PackageError when the parts cannot be those files.
    """
    if PARTS not in manifest:
        return {}
    section = section_of(manifest, PARTS)
    found = {name: _parts_of(name, section, sizes) for name in section}
    taken = set(sizes)
    for part in (part for parts in found.values() for part in parts):
        if part.file in taken:
            raise PackageError(f"it names the file '{part.file}' twice.")
        taken.add(part.file)
    return found


def hosting_copy(folder: Path, parts: Mapping[str, Sequence[Part]]) -> PackageError:
    """What to raise where whole files are needed."""
    counts = ", ".join(f"'{name}' in {len(each)} parts" for name, each in parts.items())
    return PackageError(
        f"'{folder}' is a hosting copy, for web servers that limit the size of a file: it has {counts}. "
        f"Put it together with: embedllm shard {folder} OUT --join"
    )


def _parts_of(name: str, section: Mapping[str, object], sizes: Mapping[str, int]) -> tuple[Part, ...]:
    where = "in the manifest's 'parts',"
    if name not in sizes:
        raise PackageError(f"it has parts of '{name}' but does not list that file.")
    parts = tuple(_part(entry, f"in the manifest's parts of '{name}',") for entry in list_of(section, name, where))
    if not parts:
        raise wrong(name, [], where, "a list of one or more parts")
    total = sum(part.bytes for part in parts)
    if total != sizes[name]:
        raise PackageError(f"the parts of '{name}' have {total} bytes together; the file has {sizes[name]}.")
    return parts


def _part(entry: object, where: str) -> Part:
    if not isinstance(entry, dict):
        raise PackageError(f"{where} there is a {type(entry).__name__}; expected objects.")
    return Part(
        file=plain_name(text_of(entry, "file", where)),
        bytes=integer_of(entry, "bytes", where, least=1),
        sha256=text_of(entry, "sha256", where),
    )
