"""A model of the hub as a package folder: downloaded as it is, or exported once into the user's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from embedllm.errors import DeviceUnavailable, HubError
from embedllm.hub.file_selection import GENAI, Choice, choose
from embedllm.hub.location import of_repository
from embedllm.hub.name import HubName
from embedllm.hub.repository import Repository, cache_folder, check_space, open_repository
from embedllm.loading.export_cache import cached_export, exports_folder, find_export
from embedllm.loading.gguf import model_name
from embedllm.loading.hub_sources import fetch_gguf
from embedllm.package.manifest_fields import plain_name
from embedllm.package.package import MANIFEST, WEIGHTS, Package, read_package
from embedllm.package.shards import sharded_copy

if TYPE_CHECKING:
    from embedllm.files.progress import Progress

    OnProgress = Callable[[Progress], None]


def fetch_model(
    name: HubName,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    on_progress: OnProgress | None = None,
) -> Path:
    """The package folder of a model of the hub.

    A repository's package is downloaded with the files that its manifest lists, a folder of another exporter with its
    texts and graph; a checkpoint with its configuration, tokenizer and weights, a GGUF with all its parts and its
    vision encoder, and these two are exported as without options. Nothing large is downloaded before it is known to be
    usable here.
    Raises HubError, PackageError, ExportError, and DeviceUnavailable when no device has the memory.
    """
    repository = open_repository(name.repository, revision=revision, token=token, local_files_only=local_files_only)
    exported = None if name.pattern else find_export(*_cache_key(repository))
    if exported is not None and repository.cached is not None:
        return exported  # whatever is left of its checkpoint
    choice = choose(name, repository.sizes)
    if choice.kind == "package":
        return _fetch_package(repository, choice.folder, on_progress)
    if choice.kind == "external":
        return _fetch_external(repository, choice, on_progress)
    if choice.kind == "checkpoint":
        folder = exported or _export_checkpoint(repository, on_progress or (lambda _: None))
    else:
        folder = _export_gguf(repository, choice, on_progress or (lambda _: None))
    repository.remember()
    return folder


def _fetch_package(repository: Repository, folder: str, on_progress: OnProgress | None) -> Path:
    """folder: within the repository, with a slash at its end."""
    manifest = folder + MANIFEST
    place = repository.fetch([manifest]) / folder
    package = read_package(place)
    if package.shards:
        raise sharded_copy(place, package.shards)
    for name, entry in package.files.items():
        remote_file = repository.files.get(folder + name)
        if remote_file is not None and remote_file.bytes not in (None, entry.bytes):
            raise HubError(
                f"'{folder + name}' of '{repository.name}' has {remote_file.bytes} bytes; the manifest beside it says "
                f"{entry.bytes}. Its owner has to upload the whole folder again."
            )
    names = [folder + name for name in package.files]
    if repository.missing(names):
        check_memory(package)
    repository.fetch(names, on_progress)
    repository.remember()
    return place


def _fetch_external(repository: Repository, choice: Choice, on_progress: OnProgress | None) -> Path:
    """A folder of others, or a graph where it has several, with the files that its graphs name."""
    from embedllm.package.external.genai_config import read_config
    from embedllm.package.external.genai_pipeline import COMPILED
    from embedllm.package.onnx_reader import read_graph_summary

    needed, graphs = list(choice.files), [choice.graph] if choice.graph else []
    place = repository.fetch(needed, on_progress)
    if (file := choice.folder + GENAI) in needed and not graphs:
        config = read_config(place / file)
        if config.is_special:
            config.check_special()
        graphs = [choice.folder + name for name in config.graphs]
    needed += graphs
    place = repository.fetch(needed, on_progress)
    for graph in graphs:
        folder, summary = PurePosixPath(graph).parent, read_graph_summary(place / graph)
        needed += [str(folder / plain_name(name)) for name in summary.files]
        if any(node.operator == COMPILED for node in summary.nodes):
            beside = [name for name in repository.files if PurePosixPath(name).parent == folder]
            needed += [name for name in beside if name.endswith(".bin")]
    repository.fetch(needed, on_progress)
    repository.remember()
    return place / (choice.graph or choice.folder)


def _export_checkpoint(repository: Repository, on_progress: OnProgress) -> Path:
    """The export of a checkpoint, made now unless another process was first."""

    def make(out: Path) -> None:
        from embedllm.export import Recipe, convert
        from embedllm.export.estimate import expected_package

        def look(names: Sequence[str]) -> None:
            _check_room(repository, names, expected.files[WEIGHTS].bytes)

        location = of_repository(repository, on_progress, look)
        expected = expected_package(location, Recipe())
        check_memory(expected)
        convert(location, out, on_progress=on_progress)

    return cached_export(*_cache_key(repository), make)


def _export_gguf(repository: Repository, choice: Choice, on_progress: OnProgress) -> Path:
    """The same of a GGUF, which says nothing of itself before it is there: of memory the load tells."""

    def make(out: Path) -> None:
        from embedllm.export import convert

        names = [*choice.files, *([choice.mmproj] if choice.mmproj else [])]
        # an export of packed weights can take more, of floats it takes less: when the types are known it looks again
        _check_room(repository, names, sum(repository.files[name].bytes or 0 for name in names))
        file, mmproj = fetch_gguf(repository, choice, on_progress)
        convert(file, out, mmproj=mmproj, on_progress=on_progress)

    _, key = _cache_key(repository)
    key["file"] = choice.files[0]
    if choice.mmproj:  # one that was not asked for by name may have been left out of the export
        key["named mmproj" if choice.names_mmproj else "mmproj"] = choice.mmproj
    return cached_export(model_name(PurePosixPath(choice.files[0])), key, make)


def _check_room(repository: Repository, names: Sequence[str], exported: int) -> None:
    """Raises HubError without the space for what is missing and for an export of that size."""
    if repository.cached is None:
        needs = [(cache_folder(), repository.missing_bytes(names)), (exports_folder(), exported)]
        check_space(needs, repository.name)


def _cache_key(repository: Repository) -> tuple[str, dict[str, str]]:
    """Name and key of a repository's export in the cache."""
    key = {"repository": repository.name, "commit": repository.commit, "recipe": "default"}
    return repository.name.rpartition("/")[2], key


def check_memory(package: Package) -> None:
    """Raises DeviceUnavailable when no device here has the memory for a model. Of its files only the texts are read."""
    from embedllm.backends.devices import registry
    from embedllm.loading.memory_estimate import shortfall

    devices = [device for device in registry.DeviceCatalog(package).everything() if device.available]
    shortfalls = [(device.name, why) for device in devices if (why := shortfall(package, device)) is not None]
    if devices and len(shortfalls) == len(devices):
        _, first = shortfalls[0]
        raise DeviceUnavailable(
            f"'{package.name}' was not downloaded, no device here has the memory for it: {first.reason}; "
            f"{first.remedy}.",
            [(device, why.reason, why.remedy) for device, why in shortfalls],
        )
