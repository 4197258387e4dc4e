"""The folder on disk: its manifest, read, checked and described (docs/format.md). Standard library only."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.files.command_line import graph_command, shell_word
from embedllm.files.home_path import expanded
from embedllm.files.json_object import required_json_object
from embedllm.package.entries import FileEntry, Graph
from embedllm.package.features import check_features, listed_features, read_format
from embedllm.package.file_blocks import read_blocks
from embedllm.package.file_state import sampled_sha256
from embedllm.package.links import link_fault
from embedllm.package.manifest_fields import integer_of, integers_of, list_of, plain_name, section_of, text_of
from embedllm.package.shards import read_shards, sharded_copy

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.encoder import Encoder
    from embedllm.package.external.types import ExternalFolder
    from embedllm.package.external_graph import ExternalGraph

MANIFEST = "embedllm.json"
WEIGHTS = "weights.safetensors"
_SAMPLED = "sampled_sha256"
_SHOWN = 8  # names of files in an error
# what helps where a sequence is as long as the context
_LARGER_EXPORT = "export with a larger --context"
_LARGER_MODEL = "take a model that holds more"
_LARGER_LIMIT = "load with a larger context"
_AGAIN = "Copy or export the folder again."


class Package:
    """An opened folder. The manifest and the presence and size of every file were checked; see faults() for hashes.

    damaged: why graphs cannot be used, by variant; what every device needs is there.
    shards: of files that lie in shards, by name; only read_package() gives such a folder.
    external: how a folder is read that another exporter wrote, whose manifest is made when it is opened.
    context: most tokens of a sequence. larger_context: what helps where that is too few.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, object], external: ExternalFolder | None = None) -> None:
        self.folder = folder
        self.external = external
        self.manifest = manifest
        self.name = text_of(manifest, "name")
        self.files = {name: _file_entry(name, entry) for name, entry in section_of(manifest, "files").items()}
        self.shards = read_shards(manifest, {name: entry.bytes for name, entry in self.files.items()})
        self.listed = tuple(_graph(entry) for entry in list_of(manifest, "graphs"))
        self.damaged: Mapping[str, str] = {}  # see open_package
        self.stop_tokens = tuple(integers_of(section_of(manifest, "tokens"), "stop", "in the manifest's 'tokens',"))
        self.context = integer_of(manifest, "context", least=1)
        self.larger_context = _LARGER_EXPORT if external is None else _LARGER_MODEL

    def limit_context(self, tokens: int) -> None:
        """Has engines that are opened from now on hold no more tokens of a sequence; their graphs would hold more.

        Raises ValueError for more than the package holds.
        """
        if tokens > self.context:
            raise ValueError(
                f"context is {tokens} tokens, and '{self.name}' holds {self.context} at most. Leave it out, or "
                f"{self.larger_context}."
            )
        if tokens < self.context:
            self.context, self.larger_context = tokens, _LARGER_LIMIT

    def add_stop_tokens(self, tokens: Iterable[int]) -> None:
        """Has replies end with these tokens, too, those of the model's vocabulary among them."""
        known = (token for token in tokens if token < self.architecture.vocabulary)
        self.stop_tokens = tuple(dict.fromkeys([*self.stop_tokens, *known]))

    @cached_property
    def architecture(self) -> Decoder | ExternalGraph:
        """The model, described; ExternalGraph: all that is known of it is its graph."""
        from embedllm.package.architecture_json import from_json

        try:
            return from_json(self.manifest.get("architecture"))
        except PackageError as error:
            remedy = "Export the folder again, or upgrade with: pip install -U embedllm"
            raise PackageError(f"cannot use '{self.folder / MANIFEST}': {error} {remedy}") from error

    @cached_property
    def decoder(self) -> Decoder:
        """The model's description. Raises PackageError where there is none but the graph."""
        from embedllm.package.architecture.decoder import Decoder

        if isinstance(self.architecture, Decoder):
            return self.architecture
        if self.external is not None:
            raise PackageError(
                f"'{self.name}' is a third-party graph without an architecture description, written by "
                f"{self.external.maker}. It loads and generates; for anything else export its checkpoint: "
                "embedllm export SOURCE OUT (docs/guide-external-folders.md)."
            )
        raise PackageError(
            f"'{self.name}' is a third-party graph without an architecture description, written by optimum "
            f"(model_type '{self.architecture.model_type}'). It loads on the device 'cpu' only "
            "(docs/guide-export.md#optimum)."
        )

    @property
    def external_graph(self) -> ExternalGraph:
        """What is known of a model that another exporter wrote. Raises PackageError for any other."""
        from embedllm.package.external_graph import ExternalGraph

        if not isinstance(self.architecture, ExternalGraph):
            raise PackageError(f"'{self.name}' has a graph of another exporter, but is described. {_AGAIN}")
        return self.architecture

    @property
    def encoder(self) -> Encoder | None:
        """What makes it an embedding or reranker model; None: it generates text."""
        from embedllm.package.architecture.decoder import Decoder

        return self.architecture.encoder if isinstance(self.architecture, Decoder) else None

    @property
    def packing_entries(self) -> dict[str, Mapping[str, object]]:
        """What the manifest says of each quantized matrix, by name; empty where it says nothing. See packings()."""
        entries = self.manifest.get("quantization")
        named = entries.items() if isinstance(entries, dict) else ()
        return {name: entry for name, entry in named if isinstance(entry, dict)}

    def check_generates(self) -> None:
        """Raises ValueError for an embedding or reranker model, with the command that it is for."""
        if self.encoder is None:
            return
        kind, command = "an embedding model", "embed MODEL TEXT"
        if self.encoder.score_activation:
            kind, command = "a reranker", "rerank MODEL QUERY DOCUMENT"
        raise ValueError(f"'{self.name}' is {kind}: it generates no text. It is used with: embedllm {command}")

    @property
    def is_rotated(self) -> bool:
        """Whether the value heads are rotated (`embedllm export --rotate`): adapters have to be, too."""
        recipe = self.manifest.get("recipe")
        return isinstance(recipe, dict) and recipe.get("rotate") is True

    @property
    def weights(self) -> Path:
        return self.folder / (WEIGHTS if self.external is None else self.external.weights)

    @property
    def mapped_files(self) -> list[Path]:
        """What a runtime that computes in the machine's memory may have mapped."""
        return [self.weights] if self.external is None else [self.folder / name for name in self.files]

    @property
    def stored(self) -> FileEntry:
        """The weights as they were written; of a folder made by others, its graph with them, and no hash of bytes."""
        if self.external is None:
            return self.files[WEIGHTS]
        from embedllm.package.external.detect import stored

        count, digest = stored(self.files)
        return FileEntry(bytes=count, sha256=digest)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Those of the listed graphs that can be used."""
        return tuple(graph for graph in self.listed if graph.variant not in self.damaged)

    def graph(self, variant: str) -> Graph | None:
        """The folder's graph of this variant, if it carries one that can be used."""
        return next((graph for graph in self.graphs if graph.variant == variant), None)

    def fault(self, name: str) -> str:
        """What is wrong with a listed file, which is read unless its size tells; empty when it is as exported."""
        entry = self.files[name]
        if fault := _size_fault(self.folder, name, entry):
            return fault
        path = self.folder / name
        try:
            digest = sha256(path)
        except OSError as error:
            return f"cannot read '{path}' ({error.strerror or error})"
        if digest != entry.sha256:
            return f"'{path}' is damaged: its sha256 is {digest}, the manifest says {entry.sha256}"
        return ""

    def faults(self) -> dict[str, str]:
        """Reads every file once: what is wrong with those that differ from what was exported, by their names."""
        faults = {name: self.fault(name) for name in self.files}
        return {name: fault for name, fault in faults.items() if fault}

    def check(self) -> None:
        """Reads every file once; PackageError when any differs from what was exported.

        Raises ValueError for a folder of another exporter, which has no hashes.
        """
        if self.external is not None:
            raise ValueError(
                f"'{self.name}' was written by {self.external.maker}, which notes no hashes to check; leave check out."
            )
        if faults := self.faults():
            raise self.refusal(faults)

    def refusal(self, faults: Mapping[str, str]) -> PackageError:
        """What to raise for files that are not as exported: graphs can be written again, the others cannot."""
        variants = {graph.file: graph.variant for graph in self.listed if graph.file != WEIGHTS}
        commands = [graph_command(self.folder, variants[name]) for name in faults if name in variants]
        remedy = f"Rewrite with: {'; '.join(commands)}" if len(commands) == len(faults) else _AGAIN
        return PackageError(f"{'; '.join(faults.values())}. {remedy}")


def open_package(folder: str | os.PathLike[str], *, whole: bool = True) -> Package:
    """Opens a folder that `embedllm export` wrote, or one of another exporter, or a graph in such a one, as it is.

    whole: refuse a folder of which a graph is missing or has another size; else that graph is left out and `damaged`
    says why, for devices that do not need it and for who writes it again.
    Raises PackageError when it is missing, damaged, incomplete, newer than this version, a sharded copy, or
    when its manifest names files outside of it, or a link leads out of it (embedllm/package/links.py).
    """
    path = expanded(folder)
    if (external := _external(path)) is not None:
        _check_links(external)
        return external
    package = _listed(path)
    _check_links(package)
    if package.shards:
        raise sharded_copy(package.folder, package.shards)
    faults = _graph_faults(package)
    if whole and faults:
        raise package.refusal(faults)
    _check_samples(package)
    package.damaged = {graph.variant: faults[graph.file] for graph in package.listed if graph.file in faults}
    _check_context(package)
    return package


def read_package(folder: Path) -> Package:
    """A folder of which only the small texts need to be there, as in a browser, where graphs and weights lie elsewhere.

    Raises PackageError for what open_package() refuses in the manifest, but not for shards: Package.shards says
    which are. Looks at no other file.
    """
    package = _listed(folder)
    _check_context(package)
    return package


def _external(path: Path) -> Package | None:
    """A folder of another exporter, or a graph in one; a manifest of ours goes before all else."""
    is_there = os.path.exists(path)  # noqa: PTH110  # Path.exists raises for a name that is too long
    if not is_there or ((path if path.is_dir() else path.parent) / MANIFEST).is_file():
        return None
    from embedllm.package.external.detect import manifest_of, read_external

    reading = read_external(path)
    return None if reading is None else Package(reading.root, manifest_of(reading), reading.external)


def _listed(folder: Path) -> Package:
    """A folder as its manifest lists it. Raises PackageError for a manifest that is newer or does not make sense."""
    path = folder / MANIFEST
    manifest = _read_manifest(path)
    with _naming(path):
        read_format(manifest)
        listed_features(manifest)
    check_features(manifest, str(folder))
    with _naming(path):
        package = Package(folder, manifest)
        for graph in package.listed:
            if graph.file not in package.files:
                raise PackageError(f"it names the graph '{graph.file}' but does not list that file.")
        if WEIGHTS not in package.files:
            raise PackageError(f"it does not list '{WEIGHTS}'.")
    return package


def _check_links(package: Package) -> None:
    """Of a package of ours, the texts: graphs and weights may lie on another disk, their hashes are listed."""
    if fault := link_fault(package.folder, package.files if package.external is not None else ()):
        raise PackageError(fault)


def _check_samples(package: Package) -> None:
    """Raises PackageError for weights of which parts are not as exported: of the right size, but zero, say."""
    for name, entry in package.files.items():
        path = package.folder / name
        if entry.sampled_sha256 and (value := sampled_sha256(path)) != entry.sampled_sha256:
            raise PackageError(
                f"'{path}' is damaged: the sha256 of parts of it is {value}, the manifest says {entry.sampled_sha256}. "
                f"{_AGAIN}"
            )


def _check_context(package: Package) -> None:
    """Reads the architecture, now: an application guards load(), not its first reply."""
    if package.architecture.context != package.context:
        raise PackageError(
            f"the manifest of '{package.folder}' gives two contexts, {package.context} and, in its architecture, "
            f"{package.architecture.context}. {_AGAIN}"
        )


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> Mapping[str, object]:
    try:
        is_there = path.is_file()
    except OSError as error:  # a name that is too long, say
        raise PackageError(f"cannot read '{path}': {error}. {_AGAIN}") from error
    if not is_there:
        raise PackageError(_not_a_package(path.parent))
    return required_json_object(path, "a package's manifest", remedy=_AGAIN)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Adds to what is wrong with a manifest which one it is, and what to do."""
    try:
        yield
    except PackageError as error:
        raise PackageError(f"'{path}' is damaged: {error} {_AGAIN}") from error


def _not_a_package(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder '{folder}'. Write one with: embedllm export SOURCE {shell_word(folder)}"
    if folder.is_file() and (folder.parent / MANIFEST).is_file():
        return f"'{folder}' is a file of an exported folder; give the folder: {folder.parent}"
    if folder.is_file():
        return f"'{folder}' is a file; expected a folder written by: embedllm export SOURCE OUT, or its .onnx or .xml"
    if (folder / "config.json").exists():
        return (
            f"'{folder}' is a Hugging Face folder, not an exported one (no {MANIFEST}). "
            f"Export it first: embedllm export {shell_word(folder)} OUT"
        )
    from embedllm.package.external.detect import LOOKED_FOR

    there = sorted(path.name for path in folder.iterdir())
    listed = ", ".join([*there[:_SHOWN], *(["..."] if len(there) > _SHOWN else [])]) or "nothing"
    return (
        f"'{folder}' has no {MANIFEST}; expected a folder written by: embedllm export SOURCE OUT. Of other exporters, "
        f"{LOOKED_FOR} were looked for; there is: {listed}."
    )


def _graph_faults(package: Package) -> dict[str, str]:
    """What is wrong with graphs, by file. Raises PackageError for any other file, which every device needs."""
    graphs = {graph.file for graph in package.listed} - {WEIGHTS}
    faults: dict[str, str] = {}
    for name, entry in package.files.items():
        if fault := _size_fault(package.folder, name, entry):
            if name not in graphs:
                raise PackageError(f"{fault}. {_AGAIN}")
            faults[name] = fault
    return faults


def _size_fault(folder: Path, name: str, entry: FileEntry) -> str:
    """What is wrong with a file before it is read; empty when it is there and has the size that was exported."""
    path = folder / name
    try:
        status = path.stat()
    except OSError as error:
        return f"'{folder}' is incomplete: cannot read '{name}' ({error.strerror or error})"
    if not stat.S_ISREG(status.st_mode):
        return f"'{path}' is no file; the manifest lists one of {entry.bytes} bytes"
    if status.st_size != entry.bytes:
        return f"'{path}' has {status.st_size} bytes; the manifest says {entry.bytes}"
    return ""


def _file_entry(name: str, entry: object) -> FileEntry:
    plain_name(name)
    if not isinstance(entry, dict):
        raise PackageError(f"the manifest's entry of '{name}' is {type(entry).__name__}; expected an object.")
    where = f"in the manifest's entry of '{name}',"
    size = integer_of(entry, "bytes", where, least=0)
    return FileEntry(
        bytes=size,
        sha256=text_of(entry, "sha256", where),
        sampled_sha256=text_of(entry, _SAMPLED, where) if _SAMPLED in entry else "",
        blocks=read_blocks(section_of(entry, "blocks", where), where, size) if "blocks" in entry else None,
    )


def _graph(entry: object) -> Graph:
    if not isinstance(entry, dict):
        raise PackageError(f"the manifest's 'graphs' holds a {type(entry).__name__}; expected objects.")
    values = {key: text_of(entry, key, "in the manifest's 'graphs',") for key in ("file", "variant", "activations")}
    kv = text_of(entry, "kv", "in the manifest's 'graphs',") if "kv" in entry else ""
    return Graph(file=plain_name(values["file"]), variant=values["variant"], activations=values["activations"], kv=kv)
