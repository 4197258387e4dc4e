"""What load() can be told of the prefix cache, checked. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedllm.kv_cache.prefix_cache import Folder

PREFIX_CACHE = 256 << 20  # bytes
CACHE_DIR_BYTES = 4 << 30  # bytes


def cache_folder(cache_dir: str | os.PathLike[str] | None, *, prefix_cache: int, budget_bytes: int) -> Folder | None:
    """The folder on disk, if there shall be one.

    Raises ValueError for sizes that make no sense, EmbedError when the folder cannot be made.
    """
    for name, size in (("prefix_cache", prefix_cache), ("cache_dir_bytes", budget_bytes)):
        if type(size) is not int or size < 0:
            raise ValueError(f"{name} is {size!r}; expected bytes, 0 or more.")
    if cache_dir is None:
        return None
    from embedllm.kv_cache.disk_store import CacheFolder

    return CacheFolder(Path(cache_dir).expanduser(), budget_bytes=budget_bytes)
