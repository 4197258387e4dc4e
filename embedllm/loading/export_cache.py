"""Exports that loads have made, kept in the user's cache: a folder for each source and recipe."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import EmbedError, PackageError
from embedllm.files.atomic import write_json
from embedllm.files.user_cache import user_cache
from embedllm.package.package import MANIFEST, open_package, read_package

_MADE = "4"  # raised when exports come out differently: those of before are made again
_LOCK = ".lock"  # ends of names beside a folder: of its lock, and of its key
_RECORD = ".json"
_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedExport:
    """One that is kept."""

    folder: Path
    source: str  # a repo id, or the name of a file
    revision: str  # the commit of a repository, or ""
    bytes: int
    used: float  # when it was made or loaded last, seconds since 1970


def exports_folder() -> Path:
    return user_cache("exports")


def find_export(name: str, key: Mapping[str, str], *, whole: bool = False) -> Path | None:
    """The folder that is kept under a key; None when there is none, or a damaged one. whole: see cached_export()."""
    out = _place(name, key)
    try:
        open_package(out, whole=whole)
    except PackageError as error:
        if out.exists():
            _log.info("an export in the cache is made again: %s", error)
        return None
    with suppress(OSError):
        os.utime(out / MANIFEST)  # it was used
    return out


def cached_export(name: str, key: Mapping[str, str], make: Callable[[Path], object], *, whole: bool = False) -> Path:
    """The package folder that is kept under a key; made when there is none.

    name: of the model, and of the folder. key: all that what comes out depends on: source, commit or hash, recipe.
    whole: one that lacks a graph is made again, too; else it is taken, as it runs where that graph is not needed and
    its source may have to be downloaded.
    make: writes the folder that it is given, whole or not at all, as convert() does. Of several processes and threads
    that ask at once one makes it and the others wait. Raises what `make` raises; EmbedError where nothing can be kept.
    """
    if (folder := find_export(name, key, whole=whole)) is not None:
        return folder
    from filelock import FileLock, Timeout

    out = _place(name, key)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(_lock_of(out.parent))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _log.info("'%s' is exported by another load; waiting for that", name)
            lock.acquire()
    except OSError as error:
        raise EmbedError(
            f"cannot keep an export in '{out.parent}': {error.strerror or error}. Make that folder writable, or export "
            "the model into another: embedllm export SOURCE OUT"
        ) from error
    try:
        if (folder := find_export(name, key, whole=whole)) is not None:
            return folder  # another was first
        out.parent.mkdir(exist_ok=True)  # again: it may have been removed meanwhile
        for left in out.parent.iterdir():  # damaged, or of a process that ended: who writes holds the lock
            shutil.rmtree(left, ignore_errors=True)
        write_json(_record_of(out.parent), dict(key))
        make(out)
        return out
    finally:
        lock.release()


def exports() -> list[CachedExport]:
    """All that is kept, the last used first."""
    cached_exports: list[CachedExport] = []
    for manifest in exports_folder().glob(f"*/*/{MANIFEST}"):
        with suppress(PackageError, OSError, ValueError):  # one that is being removed, or damaged
            details = read_package(manifest.parent).manifest | json.loads(_record_of(manifest.parents[1]).read_bytes())
            size = sum(path.stat().st_size for path in manifest.parent.rglob("*") if path.is_file())
            cached_exports.append(
                CachedExport(
                    folder=manifest.parent,
                    source=str(details.get("repository") or details.get("source")),
                    revision=str(details.get("commit") or ""),
                    bytes=size,
                    used=manifest.stat().st_mtime,
                )
            )
    return sorted(cached_exports, key=lambda one: (-one.used, one.source))


def remove_export(one: CachedExport) -> None:
    """Deletes a kept export; waits until nobody writes it. Raises OSError, on Windows while it is loaded."""
    from filelock import FileLock

    place = one.folder.parent
    with FileLock(_lock_of(place)):
        (one.folder / MANIFEST).unlink(missing_ok=True)  # first: what is left of it is no package
        shutil.rmtree(place)
        _record_of(place).unlink(missing_ok=True)


def _place(name: str, key: Mapping[str, str]) -> Path:
    key_text = json.dumps({"made": _MADE, "name": name, **key}, sort_keys=True)
    return exports_folder() / hashlib.sha256(key_text.encode()).hexdigest()[:16] / name


def _record_of(place: Path) -> Path:
    return place.with_name(place.name + _RECORD)


def _lock_of(place: Path) -> Path:
    return place.with_name(place.name + _LOCK)
