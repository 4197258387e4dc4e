"""Adds a draft head (MTP, EAGLE-3) to a package folder: a package in a subfolder, and the graph with what it reads.

Embedding, and what else the head shares with the target model, is not written again: its graph reads the target model's
weights file.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.graphs import Model, build, described, graph_bytes, stored_layout, write_variant
from embedllm.export.layout import Entry, Layout, lay_out
from embedllm.export.open_source import Checkpoint, open_source
from embedllm.export.recipe import Recipe
from embedllm.export.writing.atomic_folder import atomic_folder, check_place, named_place
from embedllm.export.writing.metadata import facts_of, manifest_of
from embedllm.export.writing.plan import Plan, blocks, rope_entries
from embedllm.export.writing.stream import (
    Write,
    check_source,
    filled,
    rounded,
    write_floats,
    write_matrices,
    write_rope,
)
from embedllm.files.atomic import write_json
from embedllm.hub.location import Location
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.entries import Graph
from embedllm.package.features import features_of
from embedllm.package.graph_variants import FUSED, GraphVariant, fuses_experts
from embedllm.package.package import MANIFEST, WEIGHTS, Package, open_package
from embedllm.package.packing import Packing, packings
from embedllm.package.tensors import (
    DRAFT_TOKENS,
    layer_runs,
    outer_matrices,
    packed_alike,
    small_matrices,
    vectors,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")
_FIRST_LAYER = re.compile(r"^(\w+\.)*layers\.0\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a checkpoint holds of a head."""

    decoder: Decoder
    source: Source  # of its tensors, as long as the checkpoint is open
    tokens: NDArray[np.int32] | None = None  # of the rows of its matrix; None: all tokens, in their order


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKind:
    """What differs between MTP and EAGLE-3."""

    folder: str  # the head's, inside of the target model's
    graphs: tuple[GraphVariant, ...]  # the head's, by device: the CPU's first
    hidden_graphs: tuple[GraphVariant, ...]  # the target model's, likewise
    describe: Callable[[Package, Checkpoint], Head]  # raises ExportError where both do not fit


def add_head(kind: HeadKind, folder: str | Path, checkpoint: str | Path, *, bits: int, replace: bool) -> Path:
    """Adds the head of a checkpoint to a package folder, and returns the head's folder.

    bits: of its matrices. replace: a head that is there is exchanged for the new one.
    Raises ExportError, UnsupportedModel, PackageError.
    """
    package = open_package(folder, whole=False)
    out = named_place(package.folder / kind.folder)
    check_place(out, replace, inputs=[checkpoint])
    location, reader = open_source(checkpoint, mmproj=False)
    try:
        head = kind.describe(package, reader)
        plan = _planned(package.decoder, head, bits)
        check_source(head.source, plan)
        graphs = graph_bytes(plan.packing) + graph_bytes(packings(package.manifest))  # the head's, the model's for it
        with atomic_folder(out, plan.layout.size + graphs, what="the head") as partial:
            _write(kind, package, location, plan, head, partial)
            check_place(out, replace)
    finally:
        reader.close()
    for variant in _written(kind.hidden_graphs, package.decoder, packings(package.manifest)):
        write_variant(package.folder, variant.name)
    return out


def _written(
    variants: Sequence[GraphVariant], decoder: Decoder, packing: Mapping[str, Packing]
) -> Iterator[GraphVariant]:
    """Those that the decoder can have, and of a mixture of experts that one operator computes, those with it."""
    for variant in variants:
        if variant.unsupported(decoder):
            continue
        yield variant
        if variant.name in FUSED and fuses_experts(decoder, packing):
            yield FUSED[variant.name]


def renamed(described: T, prefix: str) -> T:
    """A description of a model's first layer whose tensors begin with `prefix` in the source."""
    if isinstance(described, str):
        return cast("T", _FIRST_LAYER.sub(prefix, described))
    if isinstance(described, tuple):
        return cast("T", tuple(renamed(each, prefix) for each in described))
    if not dataclasses.is_dataclass(described) or isinstance(described, type):
        return described
    fields = (field.name for field in dataclasses.fields(described) if field.name != "name")
    return dataclasses.replace(described, **{name: renamed(getattr(described, name), prefix) for name in fields})


def _planned(target: Decoder, head: Head, bits: int) -> Plan:
    """What is stored of a head: all that it does not share with the target model."""
    recipe, decoder = Recipe(bits=bits), head.decoder
    runs = [*([(decoder.embedding,)] if decoder.embedding != target.embedding else []),
            *((linear,) for linear in outer_matrices(decoder)),
            *(run for each in decoder.layers for run in layer_runs(each)),
            *([(decoder.head,)] if decoder.head != target.head else [])]  # fmt: skip
    packing = {
        linear.name: Packing(bits=bits, group_size=recipe.group_size,
                             symmetric=recipe.is_symmetric(bits, linear.columns, is_mixture=decoder.is_mixture))
        for run in runs for linear in run
    }  # fmt: skip
    alike = tuple(part for run in runs for part in packed_alike(run, packing))
    entries = [
        [*(Entry(vector.name, "F32", (vector.size,)) for vector in vectors(decoder)),
         *(Entry(f"{matrix.name}.weight", "F32", (matrix.rows, matrix.columns)) for matrix in small_matrices(decoder)),
         *(rope_entries(decoder) if decoder.ropes != target.ropes else []),
         *([Entry(DRAFT_TOKENS, "I32", head.tokens.shape)] if head.tokens is not None else [])],
        *(block for run in alike for block in blocks(run, packing[run[0].name])),
    ]  # fmt: skip
    return Plan(decoder=decoder, packing=packing, runs=alike, prequantized=frozenset(), constants={},
                search=recipe.way.search, layout=lay_out(entries, {"format": "embedllm"}))  # fmt: skip


def _write(
    kind: HeadKind,
    package: Package,
    location: Location,
    plan: Plan,
    head: Head,
    partial: Path,
) -> None:
    def fill(write: Write, pool: ThreadPoolExecutor) -> None:
        write_floats(head.source, plan.decoder, write)
        if plan.decoder.ropes != package.decoder.ropes:
            write_rope(plan.decoder, write)
        if head.tokens is not None:
            write(DRAFT_TOKENS, head.tokens)
        write_matrices(plan, rounded(head.source, plan, pool, {}, {}), write)

    digest = filled(partial / WEIGHTS, plan.layout, fill, lambda count: None)
    theirs, place = stored_layout(package), f"{kind.folder}/{WEIGHTS}"
    own = {name: dataclasses.replace(placed, file=place) for name, placed in plan.layout.placed.items()}
    recipe = package.manifest.get("recipe")
    exact = isinstance(recipe, dict) and recipe.get("exact") is True
    model = Model(decoder=plan.decoder, layout=Layout(b"", {**theirs.placed, **own}, plan.layout.size),
                  packing={**packings(package.manifest), **plan.packing}, exact=exact)  # fmt: skip
    graphs = []
    for variant in _written(kind.graphs, plan.decoder, plan.packing):
        named = Graph(file=variant.file, variant=variant.name, activations=variant.activations)
        graphs.append(described(named, plan.decoder, model.packing))
        (partial / variant.file).write_bytes(build(variant.name, model))
    tokens = package.manifest.get("tokens")
    assert isinstance(tokens, dict)  # a package that was opened
    bits = next(iter(plan.packing.values())).bits
    facts = {**facts_of(location, Recipe(bits=bits), tokens, f"{package.name}-{kind.folder}"),
             "features": features_of(plan.packing.values(), is_encoder=False),
             "target_sha256": package.stored.sha256}  # fmt: skip
    write_json(partial / MANIFEST, manifest_of(partial, facts, plan.decoder, graphs, plan.packing, {WEIGHTS: digest}))
