"""Checkpoints of the hub for an export: small files are fetched immediately, weights on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from embedllm.hub.repository import Repository

if TYPE_CHECKING:
    from embedllm.files.progress import Progress
    from embedllm.hub.location import Location

_WEIGHTS = "model.safetensors"  # of a checkpoint in one file


def locate(
    repository: Repository,
    on_progress: Callable[[Progress], None] | None,
    before: Callable[[Sequence[str]], None] = lambda _: None,
) -> Location:
    """A checkpoint whose weights are downloaded when the export asks for them; `before` is called with their names."""
    from embedllm.hub.location import SMALL, Location

    def fetch(names: Sequence[str]) -> None:
        needed = [name for name in names if name in repository.files or name != _WEIGHTS]
        before(needed)
        repository.fetch(needed, on_progress)

    small = [name for name in repository.files if any(fnmatchcase(name, pattern) for pattern in SMALL)]
    return Location(repository.fetch(small), repository.name, revision=repository.commit, fetcher=fetch)
