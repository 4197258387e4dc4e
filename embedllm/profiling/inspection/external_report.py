"""What a folder that another exporter wrote holds, as far as its graph and small files tell; nothing is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from embedllm.errors import PackageError
from embedllm.package.package import Package
from embedllm.profiling.inspection.package_report import Memory, memory
from embedllm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalDescription:
    """All that is known of it."""

    name: str
    folder: str
    maker: str
    graph: str  # the file that is run
    passed_over: tuple[str, ...]  # other graphs of the same model
    variant: str
    files: dict[str, int]  # bytes, of the graph and its weights
    model_type: str
    kv: dict[str, int]  # layers, by KV heads and the size of a key
    activations: str  # that keys and values are kept in
    appends: bool  # they are appended to in place; else each step copies them
    vocabulary: int
    context: int
    stop_tokens: tuple[int, ...]
    memory: tuple[Memory, ...]


def describe_external(package: Package, contexts: Sequence[int] = ()) -> ExternalDescription:
    """What such a folder holds; contexts as in describe_package(). Raises ValueError for one that is too long."""
    external, described = package.external, package.external_graph
    if external is None:
        raise PackageError(f"'{package.folder}' has a manifest of ours.")
    with suppress(PackageError):  # as in a load, which needs a tokenizer
        package.add_stop_tokens(Tokenizer.open(package.folder).ends)
    graph = package.graphs[0]
    layers = Counter(f"{heads} KV heads of {size}" for heads, size in described.kv)
    return ExternalDescription(
        name=package.name,
        folder=str(package.folder),
        maker=external.maker,
        graph=graph.file,
        passed_over=external.passed_over,
        variant=graph.variant,
        files={name: entry.bytes for name, entry in package.files.items()},
        model_type=described.model_type,
        kv=dict(layers),
        activations=graph.activations,
        appends=external.names.appends,
        vocabulary=described.vocabulary,
        context=package.context,
        stop_tokens=package.stop_tokens,
        memory=memory(described, package.stored.bytes, contexts),
    )


def facts(description: ExternalDescription) -> Iterator[tuple[str, str]]:
    """For a table."""
    yield "name", description.name
    yield "folder", description.folder
    yield "written by", description.maker
    yield "graph", f"{description.graph}, as {description.variant}"
    yield "not chosen", ", ".join(description.passed_over) or "nothing"
    yield "files", ", ".join(f"{name} ({count:,} bytes)" for name, count in description.files.items())
    yield "model type", description.model_type
    for shape, layers in description.kv.items():
        yield "layers", f"{layers} with {shape}, as {description.activations}"
    yield "vocabulary", f"{description.vocabulary:,}"
    yield "context", f"{description.context:,} tokens"
    yield "stop tokens", ", ".join(map(str, description.stop_tokens)) or "none"
