"""`embedllm inspect`: describes a package directory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from embedllm.cli.options import common_options
from embedllm.cli.tables import new_console, new_table

if TYPE_CHECKING:
    from rich.table import Table

    from embedllm.package.package import Package
    from embedllm.profiling.inspection.package_report import Architecture, Description, Memory

_MEMORY = "memory of one sequence, MB (without runtime overhead, activations and repacked weights)"


@click.command(short_help="Describe a package directory.")
@click.argument("folder")
@click.option("--context", "contexts", type=int, multiple=True, metavar="N",
              help="Show the memory for a context of N tokens. Repeatable.")  # fmt: skip
@click.option("--check", is_flag=True, help="Verify the hash of every file; exit code 1 on any mismatch.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@common_options
def inspect(folder: str, *, contexts: tuple[int, ...], check: bool, as_json: bool) -> None:
    """Describe a package directory; 'demo' is the model that ships with embedllm.

    Shows its architecture, storage, memory needs and graphs, and whether the graphs match the weights.
    """
    from embedllm.package.package import WEIGHTS
    from embedllm.profiling.inspection.package_report import describe_package

    package = open_folder(folder)
    if package.external is not None:
        _inspect_external(package, contexts, check=check, as_json=as_json)
        return
    faults = package.faults() if check else {}
    if WEIGHTS in faults:
        raise package.refusal(faults)  # all that is described follows from it
    description = describe_package(package, contexts)
    if as_json:
        summary = {**dataclasses.asdict(description), "checked": check, "faults": faults}
        click.echo(json.dumps(summary, ensure_ascii=False))
    else:
        _show(description, faults if check else None)
    if faults:
        raise package.refusal(faults)
    if check and any(graph.problems for graph in description.graphs):
        raise ValueError("a graph does not fit the weights file; export the folder again.")


def _inspect_external(package: Package, contexts: Sequence[int], *, check: bool, as_json: bool) -> None:
    from embedllm.profiling.inspection.external_report import describe_external, facts

    description = describe_external(package, contexts)
    if check:
        raise ValueError(f"'{package.folder}' has no manifest with hashes to check; leave out --check.")
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(description), ensure_ascii=False))
        return
    console = new_console()
    console.print(_pairs(facts(description)))
    console.print(f"\n[bold]{_MEMORY}[/bold]")
    console.print(_memory(description.memory))


def open_folder(folder: str) -> Package:
    """For commands that only look at a model: one of the hub has to be in the cache."""
    from embedllm.loading.resolve import find_package
    from embedllm.package.package import open_package

    return open_package(find_package(folder, local_files_only=True), whole=False)


def _show(description: Description, faults: Mapping[str, str] | None) -> None:
    """faults: by file, none when all are as exported; None when that was not looked at."""
    console = new_console()
    for title, table in (
        ("", _pairs(_facts(description))),
        ("weights file, bytes", _storage(description)),
        (_MEMORY, _memory(description.memory)),
        ("graphs", _graphs(description)),
        ("files", _files(description, faults)),
        ("differences from the reference, measured at export", _verification(description.verification)),
    ):
        if table is not None:
            if title:
                console.print(f"\n[bold]{title}[/bold]")
            console.print(table)
    for graph in description.graphs:
        for problem in graph.problems:
            console.print(f"problem in {graph.file}: {problem}", style="red", markup=False)


def _facts(description: Description) -> Iterable[tuple[str, str]]:
    tokens = description.tokens
    stop = ", ".join(map(str, tokens.stop)) or "none"
    yield "name", description.name
    yield "folder", description.folder
    yield "source", description.source or "not recorded"
    yield "license", description.license or "not recorded"
    yield "task", description.task
    yield from _shape(description.architecture)
    yield "parameters", f"{description.parameters:,}"
    yield "matrices", f"{_packing(description)}: {description.matrix_bits_per_weight:.2f} bits per weight with scales"
    yield (
        "weights file",
        f"{_mb(description.weights_bytes)} MB, {description.bits_per_weight:.2f} bits per parameter "
        "but for rotary tables",
    )
    yield "tokens", f"bos {_or_none(tokens.bos)}, pad {_or_none(tokens.pad)}, stop {stop}"
    yield "written by", description.created_by or "not recorded"


def _rope(rope: Mapping[str, object]) -> str:
    if not rope["rotated"]:
        return "none (learned or unknown positions)"
    scaling = rope["scaling"]
    described = "no scaling"
    if isinstance(scaling, Mapping):
        described = ", ".join(f"{name} {value}" for name, value in scaling.items())
    return f"base {rope['base']}, {rope['rotated']} rotary dimensions, {described}"


def _shape(model: Architecture) -> Iterable[tuple[str, str]]:
    head = "the embedding" if model.tied else "a matrix of its own"
    sizes = " or ".join(f"{size:,}" for size in model.mlp)
    yield "model type", model.model_type
    yield "layers", f"{model.layers}, hidden size {model.hidden:,}, mlp {sizes}"
    if model.experts:
        yield "experts", f"{model.experts} in a layer, of which a token uses {model.experts_used}"
    for group in model.attention:
        window = f"window of {group.window:,} tokens" if group.window else "no window"
        heads = f"{group.heads} heads, {group.kv_heads} key/value heads of {group.head_dim}"
        yield "attention", f"{group.layers} layers: {heads}, {window}"
    yield "rope", _rope(model.rope)
    if model.local_rope is not None:
        yield "rope of windows", _rope(model.local_rope)
    yield "vocabulary", f"{model.vocabulary:,}; the head is {head}"
    yield "context", f"{model.context:,} tokens"


def _packing(description: Description) -> str:
    ways = []
    for way in description.packing:
        kind = f"{way.bits}-bit floats"
        if way.group_size is not None:
            zeros = "with minimums" if way.has_minimum else "symmetric" if way.symmetric else "with zero points"
            order = ", columns in another order" if way.ordered else ""
            kind = f"{way.bits} bits in groups of {way.group_size}, {zeros}{order}"
        ways.append(f"{way.matrices} of {kind}")
    return "; ".join(ways)


def _storage(description: Description) -> Table:
    columns = ("", "values", "scales", "zero points", "biases", "total", "share")
    rows = [
        (
            share.kind,
            *(f"{n:,}" if n else "" for n in (share.values, share.scales, share.zero_points, share.biases)),
            f"{share.total:,}",
            f"{share.total / description.weights_bytes:.1%}",
        )
        for share in description.storage
    ]
    return new_table(columns, rows, numbers_from=1)


def _memory(lengths: Iterable[Memory]) -> Table:
    columns = ("context", "KV float32", "with weights file", "KV float16", "with weights file")
    rows = [
        (f"{m.context:,}", *map(_mb, (m.kv_float32_bytes, m.float32_bytes, m.kv_float16_bytes, m.float16_bytes)))
        for m in lengths
    ]
    return new_table(columns, rows, numbers_from=0)


def _graphs(description: Description) -> Table:
    rows = []
    for graph in description.graphs:
        fit = "not checked: onnx is not installed"
        if graph.problems:
            fit = f"problems, see below: {len(graph.problems)}"
        elif graph.weights is not None:
            support = f"; {graph.held_to} have all its operators" if graph.held_to else ""
            fit = f"{graph.weights}, all in the weights file, none stored twice{support}"
        unused = "" if graph.unused_bytes is None else f"{graph.unused_bytes:,}"
        rows.append((graph.file, graph.variant, f"{graph.bytes:,}", unused, fit))
    return new_table(("file", "variant", "bytes", "unused bytes", "weights"), rows)


def _files(description: Description, faults: Mapping[str, str] | None) -> Table:
    def state(name: str) -> str:
        if faults is None:
            return "by the manifest"
        return "NOT as exported" if name in faults else "as exported"

    rows = [
        (name, f"{entry.bytes:,}", f"{entry.sha256[:16]}…", state(name)) for name, entry in description.files.items()
    ]
    return new_table(("file", "bytes", "sha256", ""), rows)


def _verification(results: Mapping[str, object] | None) -> Table | None:
    """Whatever the export measured, by graph."""
    if results is None:
        return None
    rows = []
    for name, value in results.items():
        text = str(value)
        if isinstance(value, dict):
            text = ", ".join(f"{key} {_number(item)}" for key, item in value.items())
        rows.append((name, text))
    return _pairs(rows)


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _or_none(token: int | None) -> str:
    return "none" if token is None else str(token)


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f}"


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    return new_table(("", ""), list(rows), header=False)
