"""What is kept on this machine of models of the hub: downloads in the hub client's cache, and exports in our own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from embedllm.errors import HubError
from embedllm.hub.repository import cache_folder
from embedllm.loading.export_cache import exports, remove_export
from embedllm.package.package import MANIFEST

if TYPE_CHECKING:
    from huggingface_hub import HFCacheInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptModel:
    """A repository's downloads, or one export."""

    name: str  # the repo id
    kind: str  # "package", "checkpoint", "GGUF" or "other" for a download; "export"
    commits: tuple[str, ...]
    bytes: int
    used: float  # when it was last, seconds since 1970; of a download as well as the file system notes it
    folder: str


def kept_models() -> list[KeptModel]:
    """All that is kept, by name. Raises HubError without the hub's client."""
    cache = _scan()
    downloads = [
        KeptModel(
            name=repo.repo_id,
            kind=_kind({file.file_name for revision in repo.revisions for file in revision.files}),
            commits=tuple(sorted(revision.commit_hash for revision in repo.revisions)),
            bytes=repo.size_on_disk,
            used=max(repo.last_accessed, repo.last_modified),
            folder=str(repo.repo_path),
        )
        for repo in (() if cache is None else cache.repos)
        if repo.repo_type == "model"
    ]
    local_exports = [
        KeptModel(name=one.source, kind="export", commits=(one.revision,) if one.revision else (), bytes=one.bytes,
                  used=one.used, folder=str(one.folder))
        for one in exports()
    ]  # fmt: skip
    return sorted([*downloads, *local_exports], key=lambda one: (one.name, one.kind, one.folder))


def remove_models(name: str, *, downloads: bool = True) -> int:
    """Deletes the exports of a model, and what was downloaded of it; gives the bytes that it took.

    downloads: False keeps those. Raises HubError when nothing of that name is kept, OSError for what cannot be deleted.
    """
    models = [one for one in kept_models() if one.name == name and (downloads or one.kind == "export")]
    if not models:
        names = sorted({one.name for one in kept_models()})
        near = get_close_matches(name, names, n=3)
        offered = f"Near it are: {', '.join(near)}." if near else "embedllm models lists what is."
        raise HubError(f"of '{name}' nothing is kept that could be removed. {offered}")
    for export in exports():
        if export.source == name:
            remove_export(export)
    cache = _scan() if downloads else None
    if cache is None:
        return sum(one.bytes for one in models)
    for repo in cache.repos:
        if repo.repo_type == "model" and repo.repo_id == name:
            # of this repository alone: the client takes a commit for that of the first repository that has it
            alone = replace(cache, repos=frozenset({repo}))
            alone.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
    return sum(one.bytes for one in models)


def _scan() -> HFCacheInfo | None:
    """None: there is no cache yet."""
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        raise HubError("what is kept of the hub's models takes huggingface_hub: pip install huggingface-hub") from None
    try:
        return scan_cache_dir(cache_folder())
    except CacheNotFound:
        return None


def _kind(names: Iterable[str]) -> str:
    plain = {PurePosixPath(name).name for name in names}
    ends = {PurePosixPath(name).suffix for name in plain}
    if MANIFEST in plain:
        return "package"
    if "config.json" in plain and ".safetensors" in ends:
        return "checkpoint"
    return "GGUF" if ".gguf" in ends else "other"
