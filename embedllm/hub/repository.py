"""A repository of the Hugging Face hub by the hub's own client: what it holds, and its files in the client's cache."""

from __future__ import annotations

import glob
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import HubError
from embedllm.hub.errors import refusing
from embedllm.hub.integrity import PendingChecks
from embedllm.package.package import sha256

if TYPE_CHECKING:
    from embedllm.files.progress import Progress

_INSTALL = "pip install huggingface-hub"
_SPARE = 64 << 20  # bytes that shall be left on a disk
_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True)
class HubFile:
    """What is known of a file."""

    bytes: int | None
    sha256: str = ""  # of one that is stored as a large file
    blob: str = ""  # of any other: git's own hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """One commit of a repository."""

    name: str
    revision: str | None  # as it was asked for
    commit: str
    files: Mapping[str, HubFile]
    cached: Path | None  # its folder in the cache, when that is all that is known of it: the hub was not reached
    token: str | bool | None = field(repr=False)

    @property
    def sizes(self) -> dict[str, int | None]:
        return {name: file.bytes for name, file in self.files.items()}

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that are not in the cache."""
        from huggingface_hub import try_to_load_from_cache

        return [
            name for name in names if not isinstance(try_to_load_from_cache(self.name, name, revision=self.commit), str)
        ]

    def missing_bytes(self, names: Iterable[str]) -> int:
        """What fetch() would download, as far as sizes are known."""
        return sum(self.files[name].bytes or 0 for name in self.missing(names) if name in self.files)

    def fetch(self, names: Sequence[str], on_progress: Callable[[Progress], None] | None = None) -> Path:
        """The folder with these files, those that are missing downloaded and compared with the hub's hashes.

        A connection that breaks is taken up where it broke off. Raises HubError; a file that is not whole, or not as
        the hub says, is not left in the cache.
        """
        if absent := [name for name in names if name not in self.files]:
            where = " as far as it is in the cache, and the hub was not reached" if self.cached else ""
            raise HubError(f"'{self.name}' has no file '{absent[0]}' in commit {self.commit[:12]}{where}.")
        if self.cached:
            return self.cached
        from huggingface_hub import snapshot_download

        from embedllm.hub.progress import reporting

        missing, size = self.missing(names), self.missing_bytes(names)
        unchecked = PendingChecks(self.name, self.commit)
        doubtful = unchecked.names & {*names}
        if not missing and not doubtful and (folder := _cached_folder(self.name, self.commit)) is not None:
            return folder
        check_space([(cache_folder(), size)], self.name)
        if missing:
            _log.info("downloading %d files of '%s', %s bytes", len(missing), self.name, f"{size:,}")
            unchecked.begin(missing)
        patterns = [glob.escape(name) for name in names]
        with reporting(size, on_progress) as bars, refusing(self.name, self.revision, self.token):
            folder = Path(snapshot_download(self.name, revision=self.commit, allow_patterns=patterns, token=self.token,
                                            tqdm_class=bars))  # fmt: skip
        for name in sorted({*missing, *doubtful}):
            _check_file(folder / name, self.files[name], self.name)
        unchecked.end({*missing, *doubtful})
        return folder

    def remember(self) -> None:
        """Notes in the cache which commit the branch stands for, once all is there: for when there is no network."""
        if self.cached is None and getattr(_cached_folder(self.name, self.revision), "name", "") != self.commit:
            from huggingface_hub import hf_hub_download

            here = self.files.keys() - set(self.missing(self.files))
            # any will do: the smallest, since it is downloaded if the branch has gone on meanwhile
            name = min(here or self.files, key=lambda name: (self.files[name].bytes or 0, name))
            with refusing(self.name, self.revision, self.token):
                hf_hub_download(self.name, name, revision=self.revision, token=self.token)


def open_repository(
    name: str, *, revision: str | None = None, token: str | bool | None = None, local_files_only: bool = False
) -> Repository:
    """What a repository holds at a branch, tag or commit; of the hub, or, when it cannot be reached, of the cache.

    Raises HubError.
    """
    try:
        from huggingface_hub import HfApi, errors
    except ImportError:
        raise HubError(f"'{name}' is no folder here; models of the hub take huggingface_hub: {_INSTALL}") from None
    if not local_files_only:
        try:
            with refusing(name, revision, token):
                info = HfApi(token=token).model_info(name, revision=revision, files_metadata=True)
            files = {
                one.rfilename: HubFile(one.size, "" if one.lfs is None else one.lfs.sha256, one.blob_id or "")
                for one in info.siblings or ()
            }
            return Repository(name=name, revision=revision, commit=info.sha or "", files=files, cached=None,
                              token=token)  # fmt: skip
        except HubError as error:
            is_final = isinstance(error.__cause__, (errors.RevisionNotFoundError, ValueError))
            if is_final or (cached := _cached_folder(name, revision)) is None:
                raise
            _log.info("'%s' is taken from the cache: %s", name, error)
    elif (cached := _cached_folder(name, revision)) is None:
        at = f" at '{revision}'" if revision else ""
        raise HubError(
            f"there is no folder '{name}' here, the hub's model of that name{at} is not in the cache, and nothing is "
            f"downloaded here. Download it first: embedllm pull {name}"
        )
    here = (path for path in cached.rglob("*") if path.is_file())
    cached_files = {path.relative_to(cached).as_posix(): HubFile(path.stat().st_size) for path in here}
    return Repository(name=name, revision=revision, commit=cached.name, files=cached_files, cached=cached, token=token)


def cache_folder() -> Path:
    """Where the hub's client keeps what it downloads."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def check_space(needs: Sequence[tuple[Path, int]], name: str) -> None:
    """Raises HubError when a disk has less free than will be written to it. needs: folders, and bytes for each."""
    disks: dict[int, tuple[Path, int]] = {}
    for folder, count in needs:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        disk = there.stat().st_dev
        disks[disk] = there, disks.get(disk, (there, 0))[1] + count
    for folder, count in disks.values():
        free = shutil.disk_usage(folder).free
        if count and free < (needed := count + _SPARE):
            raise HubError(
                f"'{name}' needs {needed:,} bytes on the disk of '{folder}'; {free:,} are free. Free some (embedllm "
                "models lists what is kept), or name another disk in the environment variable HF_HOME."
            )


def _cached_folder(name: str, revision: str | None) -> Path | None:
    """The commit that the cache has for a branch or tag, or this commit, whole or not."""
    from huggingface_hub import errors, snapshot_download

    try:
        # no pattern: whether files are missing is asked for later, by name
        return Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=[]))
    except errors.LocalEntryNotFoundError:
        return None


def _check_file(path: Path, expected_file: HubFile, repository: str) -> None:
    """Raises HubError, and removes the file from the cache, unless its hash is what the hub says."""
    expected, actual = expected_file.sha256, ""
    if expected:
        actual = sha256(path)
    elif expected_file.blob:
        expected, data = expected_file.blob, path.read_bytes()
        actual = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if actual != expected:
        for one in (path.resolve(), path):  # the bytes, and the link to them
            one.unlink(missing_ok=True)
        raise HubError(
            f"'{path.name}' of '{repository}' came damaged: its hash is {actual}, the hub says {expected}. "
            "It was removed; load again to download it again."
        )
