"""`embedllm export --exporter optimum`: a model that is not described here, by the graph that optimum traces of it.

optimum, transformers and torch run in a process of their own; what is packed then needs none of them.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.describe import DISTRIBUTION, INSTALL
from embedllm.export.layout import Entry, Layout, lay_out
from embedllm.export.optimum.graph_rewrite import GraphSource, TracedGraph, kv_shapes, read_traced, rewritten
from embedllm.export.recipe import Recipe
from embedllm.export.writing.atomic_folder import atomic_folder, check_place, named_place
from embedllm.export.writing.metadata import copy_texts, facts_of, manifest_of, special_tokens, texts_of
from embedllm.export.writing.plan import blocks
from embedllm.export.writing.stream import Write, filled, rounded, write_matrices
from embedllm.export.writing.tokenizer_file import read_tokenizer, warn_of_missing_rows, warn_of_no_end
from embedllm.files.atomic import write_json
from embedllm.files.progress import Progress
from embedllm.hub.location import Location, locate
from embedllm.package.architecture.weights import Linear
from embedllm.package.architecture_json import to_json
from embedllm.package.entries import Graph
from embedllm.package.external.config_files import CONTEXTS
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.graph_variants import EXTERNAL
from embedllm.package.package import MANIFEST, WEIGHTS, open_package
from embedllm.package.packing import Packing

_METHODS = ("search", "nearest")
_LEAST_FREE = 64 << 20  # bytes of the disk: what a trace comes to is not known before it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is stored of a traced graph."""

    packing: Mapping[str, Packing]
    runs: Sequence[Sequence[Linear]]
    search: bool
    prequantized: frozenset[str]
    layout: Layout


def convert_with_optimum(
    source: str | Path | Location,
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    revision: str | None = None,
    replace: bool = False,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Exports a model by optimum's graph of it into a package folder for the CPU, and returns that folder.

    As convert(), with the methods "search" (the default) and "nearest"; `rotate`, `size` and `mean_bits` take a
    description of the model, which there is none of. Raises ExportError.
    """
    out, recipe = named_place(out), (recipe or Recipe()).of_floats
    check_place(out, replace, inputs=[source.folder if isinstance(source, Location) else source])
    _check_recipe(recipe)
    _check_installed()
    location = locate(source, revision)
    reader = HuggingFaceSource(location)
    try:
        reader.fetch()
        texts, tokenizer = texts_of(location.folder), read_tokenizer(location.folder)
        context = _context(reader.config, recipe.context)
        with (
            atomic_folder(out, _LEAST_FREE) as partial,
            tempfile.TemporaryDirectory(prefix=f"{partial.name}.trace-", dir=out.parent) as folder,
        ):
            on_progress(Progress("trace", 0, 1))
            traced = read_traced(_trace(location.folder, Path(folder)))
            on_progress(Progress("trace", 1, 1))
            copy_texts(texts, partial)
            tokenizer.write(partial)
            warn_of_missing_rows(tokenizer.tokenizer, traced.vocabulary)
            tokens = special_tokens(reader, traced.vocabulary, tokenizer.tokenizer.ends)
            warn_of_no_end(tokens["stop"])
            model_type = reader.config.get("model_type")
            described = ExternalGraph(
                model_type=str(model_type),
                context=context,
                vocabulary=traced.vocabulary,
                kv=kv_shapes(traced),
                parameters=_parameters(traced),
                in_pieces=True,
            )
            facts = facts_of(location, recipe, tokens, out.name) | {"exporter": f"optimum-onnx {_version()}"}
            _write(traced, described, recipe, facts, partial, on_progress)
            check_place(out, replace)
    finally:
        reader.close()
    return out


def _write(
    traced: TracedGraph,
    described: ExternalGraph,
    recipe: Recipe,
    facts: Mapping[str, object],
    partial: Path,
    on_progress: Callable[[Progress], None],
) -> None:
    decided = _plan(traced, recipe)
    digest = _write_weights(traced, decided, partial / WEIGHTS, on_progress)
    graph = Graph(file=EXTERNAL.file, variant=EXTERNAL.name, activations=EXTERNAL.activations)
    packed = rewritten(traced, decided.layout, decided.packing, exact=recipe.exact)
    (partial / graph.file).write_bytes(packed)
    manifest = manifest_of(partial, facts, described, [graph], decided.packing, {WEIGHTS: digest})
    write_json(partial / MANIFEST, manifest)
    if not _feeds_alike(partial, described):
        described = dataclasses.replace(described, in_pieces=False)
        write_json(partial / MANIFEST, manifest | {"architecture": to_json(described)})
        if not _feeds_alike(partial, described):
            raise ExportError(
                f"the graph that optimum wrote of '{described.model_type}' gives other logits for a prompt that is fed "
                "at once than token by token, so its replies would be wrong. Such a model cannot be exported."
            )


def _feeds_alike(folder: Path, described: ExternalGraph) -> bool:
    """Whether the graph says the same of a prompt that is fed at once, and rewound and fed in another way."""
    from embedllm.backends.ort.engine import devices
    from embedllm.backends.ort.external_graph.engine import MOST_DIFFERENCE, ExternalGraphEngine
    from embedllm.backends.ort.external_graph.placement import on_host
    from embedllm.backends.sessions.chunk_check import difference

    package = open_package(folder)
    engine = ExternalGraphEngine(package, package.graphs[0], on_host(devices()[0]))
    try:
        return difference(engine, described) <= MOST_DIFFERENCE[False]
    finally:
        engine.close()


def _plan(traced: TracedGraph, recipe: Recipe) -> _Plan:
    matrices, tables = traced.matrices, {use.linear.name for use in traced.uses if use.looks_up}
    head_bits = recipe.body_bits if recipe.head_bits is None else recipe.head_bits
    table_bits = head_bits if recipe.embedding_bits is None else recipe.embedding_bits
    heads = {use.linear.name for use in traced.uses if use.linear.rows == traced.vocabulary and not use.looks_up}
    bits = {matrix.name: recipe.body_bits for matrix in matrices}
    bits |= dict.fromkeys(tables, table_bits) | dict.fromkeys(heads, head_bits)
    try:
        packing = {
            name: Packing(bits=count, group_size=recipe.group_size, symmetric=recipe.symmetric is not False)
            for name, count in bits.items()
        }
    except ValueError as error:
        raise ExportError(str(error)) from error
    runs = [[matrix] for matrix in matrices]
    small = [Entry(tensor.name, "F32", tuple(tensor.dims)) for tensor in traced.rest]
    entries = [small, *(block for run in runs for block in blocks(run, packing[run[0].name]))]
    layout = lay_out([run for run in entries if run], {"format": "embedllm"})
    return _Plan(packing=packing, runs=runs, search=recipe.way.search, prequantized=frozenset(), layout=layout)


def _write_weights(traced: TracedGraph, plan: _Plan, path: Path, on_progress: Callable[[Progress], None]) -> str:
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("weights", done, plan.layout.size))

    def fill(write: Write, pool: ThreadPoolExecutor) -> None:
        for tensor in traced.rest:
            write(tensor.name, traced.array(tensor))
        write_matrices(plan, rounded(GraphSource(traced), plan, pool, {}, {}), write)

    digest = filled(path, plan.layout, fill, on_bytes)
    on_progress(Progress("weights", plan.layout.size, plan.layout.size))
    return digest


def _trace(source: Path, folder: Path) -> Path:
    """optimum's graph of a checkpoint. Raises ExportError with what it said last."""
    arguments = ["onnx", "--model", str(source), "--task", "text-generation-with-past", "--no-post-process"]
    command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", *arguments, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    path = folder / "model.onnx"
    if done.returncode or not path.exists():
        lines = (done.stderr or done.stdout).strip().splitlines()
        last = lines[-1] if lines else f"exit status {done.returncode}"
        raise ExportError(f"optimum {_version()} could not export '{source}': {last}")
    return path


def _check_recipe(recipe: Recipe) -> None:
    if recipe.method not in (None, *_METHODS):
        raise ExportError(f"method is {recipe.method!r}; a traced graph takes {' or '.join(map(repr, _METHODS))}.")
    for name in ("rotate", "size", "mean_bits"):
        if getattr(recipe, name):
            raise ExportError(f"'{name}' takes a model that is described here; leave it out for a traced graph.")


def _check_installed() -> None:
    try:
        metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise ExportError(f"the exporter 'optimum' is not installed. Install it with: {INSTALL}") from error


def _version() -> str:
    return metadata.version(DISTRIBUTION)


def _context(config: Mapping[str, object], requested: int | None) -> int:
    limit = next((value for name in CONTEXTS if type(value := config.get(name)) is int and value > 0), None)
    if requested is None and limit is None:
        raise ExportError(f"config.json does not say how many tokens the model holds ({', '.join(CONTEXTS)}). "
                          "Say it with --context.")  # fmt: skip
    if requested is not None and (requested < 1 or (limit is not None and requested > limit)):
        raise ExportError(f"context is {requested} tokens; expected 1 to {limit}, what config.json says.")
    return requested or limit or 0


def _parameters(traced: TracedGraph) -> int:
    rest = sum(int(np.prod(tensor.dims)) for tensor in traced.rest)
    return sum(matrix.rows * matrix.columns for matrix in traced.matrices) + rest
