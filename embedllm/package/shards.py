"""Files in shards, in copies of a folder for web servers that limit the size of a file (docs/format.md#shards)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.files.command_line import shell_word
from embedllm.package.manifest_fields import integer_of, list_of, plain_name, section_of, text_of, wrong

SHARDS = "shards"  # the manifest's key


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Some of a file's bytes, as a file of their own."""

    file: str
    bytes: int
    sha256: str


def read_shards(manifest: Mapping[str, object], sizes: Mapping[str, int]) -> dict[str, tuple[Shard, ...]]:
    """The shards of each file that lies in shards, in their order; empty for a folder whose files are whole.

    sizes: bytes of the files that the manifest lists. Raises PackageError when the shards cannot be those files.
    """
    if SHARDS not in manifest:
        return {}
    section = section_of(manifest, SHARDS)
    by_file = {name: _shards_of(name, section, sizes) for name in section}
    names = set(sizes)
    for shard in (shard for shards in by_file.values() for shard in shards):
        if shard.file in names:
            raise PackageError(f"it names the file '{shard.file}' twice.")
        names.add(shard.file)
    return by_file


def sharded_copy(folder: Path, shards: Mapping[str, Sequence[Shard]]) -> PackageError:
    """What to raise where whole files are needed."""
    counts = ", ".join(f"'{name}' in {len(each)} shards" for name, each in shards.items())
    return PackageError(
        f"'{folder}' is a sharded copy, for web servers that limit the size of a file: it has {counts}. "
        f"Put it together with: embedllm shard {shell_word(folder)} OUT --join"
    )


def _shards_of(name: str, section: Mapping[str, object], sizes: Mapping[str, int]) -> tuple[Shard, ...]:
    where = "in the manifest's 'shards',"
    if name not in sizes:
        raise PackageError(f"it has shards of '{name}' but does not list that file.")
    shards = tuple(_shard(entry, f"in the manifest's shards of '{name}',") for entry in list_of(section, name, where))
    if not shards:
        raise wrong(name, [], where, "a list of one or more shards")
    total = sum(shard.bytes for shard in shards)
    if total != sizes[name]:
        raise PackageError(f"the shards of '{name}' have {total} bytes together; the file has {sizes[name]}.")
    return shards


def _shard(entry: object, where: str) -> Shard:
    if not isinstance(entry, dict):
        raise PackageError(f"{where} there is a {type(entry).__name__}; expected objects.")
    return Shard(
        file=plain_name(text_of(entry, "file", where)),
        bytes=integer_of(entry, "bytes", where, least=1),
        sha256=text_of(entry, "sha256", where),
    )
