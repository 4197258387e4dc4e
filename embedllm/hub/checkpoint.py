"""Checkpoints of the hub for an export: small files are fetched immediately, weights on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import HubError
from embedllm.hub.file_selection import choose
from embedllm.hub.name import hub_name
from embedllm.hub.repository import Repository, open_repository

if TYPE_CHECKING:
    from embedllm.files.progress import Progress
    from embedllm.hub.location import Location

_WEIGHTS = "model.safetensors"  # of a checkpoint in one file


def export_source(
    source: str, *, revision: str | None = None, on_progress: Callable[[Progress], None] | None = None
) -> str | Path | Location:
    """What convert() takes for a name of the hub: a checkpoint, or a GGUF file, which is downloaded; else the source.

    Raises HubError.
    """
    name = hub_name(source)
    if name is None:
        return source
    repository = open_repository(name.repository, revision=revision)
    choice = choose(name, repository.sizes)
    if choice.kind in ("package", "external"):
        raise HubError(f"'{name}' is exported already; load('{name}') and --model {name} take it as it is.")
    if choice.kind == "gguf":
        found: Path | Location = repository.fetch(choice.files, on_progress) / choice.files[0]
    else:
        found = locate(repository, on_progress)
    repository.remember()
    return found


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
