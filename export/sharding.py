"""Sharded copies for web servers that limit the size of a file: large files cut into shards, and joined again.

A block of a file is in memory at a time. Every byte is hashed on the way: a copy is made of what was exported, or not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.export.openvino.links import link_weights, weight_links
from embedllm.export.writing.atomic_folder import atomic_folder, check_place, named_place
from embedllm.export.writing.replaceable import check_copy_is_whole
from embedllm.files.atomic import write_json
from embedllm.files.home_path import expanded
from embedllm.files.progress import Progress
from embedllm.package.features import SHARDS, with_feature
from embedllm.package.package import MANIFEST, Package, read_package, sha256
from embedllm.package.shards import Shard

SIZE = 2047 << 20  # bytes of a shard: just under 2 GiB, which many servers and tools take at most
_BLOCK = 1 << 20
_SHARD_ENTRY = 500  # bytes of the manifest: the name of a shard and its hash
_UNKNOWN = "0" * 64  # in place of a hash: as long as one

OnProgress = Callable[[Progress], None]
Plan = Mapping[str, Sequence[Shard]]  # the shards of each file that has any


def shard(
    folder: str | Path,
    out: str | Path,
    size: int = SIZE,
    *,
    replace: bool = False,
    on_progress: OnProgress = lambda _: None,
) -> Path:
    """Copies a package folder, whole or in shards, into one that has no file of more than `size` bytes.

    Only what the manifest lists is copied, each file checked by its sha256; a folder that needs no shards is copied as
    it is. replace: as for convert(). Raises PackageError for what is damaged or cannot be had in that size, and
    ExportError; `out` appears when it is whole, or not at all.
    """
    package = _read(folder)
    return _copy(package, out, _planned(package, size), replace=replace, on_progress=on_progress)


def join(
    folder: str | Path, out: str | Path, *, replace: bool = False, on_progress: OnProgress = lambda _: None
) -> Path:
    """Copies a folder in shards into one with whole files: the folder that it was made of, each file checked.

    Raises PackageError, ExportError; `out` appears when it is whole, or not at all.
    """
    package = _read(folder)
    if not package.shards:
        raise PackageError(f"'{package.folder}' is no sharded copy: none of its files is in shards. Use it as it is.")
    return _copy(package, out, {}, replace=replace, on_progress=on_progress)


def unlisted(folder: str | Path) -> list[str]:
    """What lies in a package folder, is not listed in its manifest, and so is not copied."""
    package = _read(folder)
    shards = {shard.file for shards in package.shards.values() for shard in shards}
    names = {MANIFEST, *weight_links(package.files), *shards, *package.files}
    names = {name.partition("/")[0] for name in names}
    return sorted(path.name for path in package.folder.iterdir() if path.name not in names)


def cut_in_place(folder: Path, size: int, on_progress: OnProgress = lambda _: None) -> None:
    """Cuts the files of a whole folder that nobody reads yet, from their ends on: takes room for one shard more."""
    package = read_package(folder)
    plan = _planned(package, size)
    if not plan:
        return
    for name in weight_links(package.files):  # of no use beside weights in shards
        (folder / name).unlink(missing_ok=True)
    total = sum(package.files[name].bytes for name in plan)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("shards", done, total))

    cut: dict[str, list[Shard]] = {}
    for name, shards in plan.items():
        start, written = package.files[name].bytes, []
        with (folder / name).open("r+b") as file:
            for shard in reversed(shards[1:]):
                start -= shard.bytes
                file.seek(start)
                written += _write(folder, [shard], _blocks(iter(lambda: file.read(_BLOCK), b""), on_bytes))
                file.truncate(start)
        (folder / name).rename(folder / shards[0].file)
        on_bytes(start)
        first = dataclasses.replace(shards[0], sha256=sha256(folder / shards[0].file))
        cut[name] = [first, *reversed(written)]
    write_json(folder / MANIFEST, _manifest(package, cut))


def _read(folder: str | Path) -> Package:
    return read_package(expanded(folder))


def _planned(package: Package, size: int) -> dict[str, list[Shard]]:
    """Which files are cut, and into what: their hashes are not known yet.

    Raises PackageError when the manifest, which lists the shards, would be larger than one.
    """
    if size < 1:
        raise ValueError(f"size is {size} bytes; expected 1 or more.")
    if package.encoder is not None:
        raise PackageError(
            f"'{package.name}' is an embedding or reranker model, which browsers do not run: it needs no shards."
        )
    least = (package.folder / MANIFEST).stat().st_size  # now, before a list of a shard for every few bytes is made
    plan: dict[str, list[Shard]] = {}
    if least <= size:
        for name, entry in package.files.items():
            if entry.bytes > size:
                plan[name] = _cut(name, entry.bytes, size)
        least = len(json.dumps(_manifest(package, plan), indent=1, ensure_ascii=False).encode()) + 1  # as write_json
    if least > size:
        raise PackageError(f"'{MANIFEST}' cannot be cut and needs {least:,} bytes; expected shards of at least that.")
    return plan


def _cut(name: str, total: int, size: int) -> list[Shard]:
    starts = range(0, total, size)
    return [
        Shard(file=f"{name}.{index + 1}-of-{len(starts)}", bytes=min(size, total - start), sha256=_UNKNOWN)
        for index, start in enumerate(starts)
    ]


def _copy(package: Package, out: str | Path, plan: Plan, *, replace: bool, on_progress: OnProgress) -> Path:
    out = named_place(out)
    check_place(out, replace, inputs=[package.folder])
    check_copy_is_whole(package.folder, out)
    total = sum(entry.bytes for entry in package.files.values())
    described = (package.folder / MANIFEST).stat().st_size + _SHARD_ENTRY * sum(len(each) for each in plan.values())
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("copy", done, total))

    with atomic_folder(out, total + described, what="the copy") as partial:
        shards: dict[str, list[Shard]] = {}
        for name, entry in package.files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            whole = [Shard(file=name, bytes=entry.bytes, sha256=_UNKNOWN)]
            written = _write(partial, plan.get(name, whole), _blocks(_checked(package, name), on_bytes))
            if name in plan:
                shards[name] = written
        if not plan:
            link_weights(partial, weight_links(package.files))  # which the manifest does not list
        write_json(partial / MANIFEST, _manifest(package, shards))
        check_place(out, replace)  # again: somebody may have made a folder of that name meanwhile
    return out


def _manifest(package: Package, shards: Plan) -> dict[str, object]:
    """The manifest with these shards, and the feature that a folder with any has."""
    features = with_feature(package.manifest.get("features"), SHARDS, is_needed=bool(shards))
    manifest = {key: value for key, value in package.manifest.items() if key != SHARDS} | {"features": features}
    listed = {name: [dataclasses.asdict(shard) for shard in each] for name, each in shards.items()}
    return {**manifest, SHARDS: listed} if shards else manifest


def _write(folder: Path, shards: Sequence[Shard], blocks: Iterator[memoryview]) -> list[Shard]:
    """Writes as many bytes into each shard as it has, all blocks; the shards with their hashes."""
    rest = memoryview(b"")
    written = []
    for shard in shards:
        digest, left = hashlib.sha256(), shard.bytes
        with (folder / shard.file).open("xb") as file:
            while left:
                rest = rest or next(blocks)
                piece, rest = rest[:left], rest[left:]
                file.write(piece)
                digest.update(piece)
                left -= len(piece)
        written.append(dataclasses.replace(shard, sha256=digest.hexdigest()))
    next(blocks, None)  # what checks them does so at their end
    return written


def _blocks(blocks: Iterator[bytes], on_bytes: Callable[[int], None]) -> Iterator[memoryview]:
    for block in blocks:
        yield memoryview(block)
        on_bytes(len(block))


def _checked(package: Package, name: str) -> Iterator[bytes]:
    """The bytes of a listed file, from its shards if it lies in shards; PackageError when they are not as exported."""
    entry = package.files[name]
    shards = package.shards.get(name)
    if shards is None:
        yield from _checked_shard(package.folder, Shard(file=name, bytes=entry.bytes, sha256=entry.sha256))
        return
    digest = hashlib.sha256()
    for shard in shards:
        for block in _checked_shard(package.folder, shard):
            digest.update(block)
            yield block
    if digest.hexdigest() != entry.sha256:
        raise PackageError(
            f"the shards of '{package.folder / name}' are damaged: the sha256 of all is {digest.hexdigest()}, the "
            f"manifest says {entry.sha256}. Copy or export the folder again."
        )


def _checked_shard(folder: Path, shard: Shard) -> Iterator[bytes]:
    path, digest, left = folder / shard.file, hashlib.sha256(), shard.bytes
    try:
        size = path.stat().st_size
        if size != shard.bytes:
            raise PackageError(f"'{path}' has {size} bytes; the manifest says {shard.bytes}. Copy it again.")
        with path.open("rb") as file:
            while left and (block := file.read(min(_BLOCK, left))):
                digest.update(block)
                left -= len(block)
                yield block
    except OSError as error:
        reason = error.strerror or error
        raise PackageError(
            f"'{folder}' is incomplete: cannot read '{shard.file}' ({reason}). Copy it again."
        ) from error
    if digest.hexdigest() != shard.sha256:
        raise PackageError(
            f"'{path}' is damaged: its sha256 is {digest.hexdigest()}, the manifest says {shard.sha256}. Copy it again."
        )
