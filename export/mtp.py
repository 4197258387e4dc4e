"""Adds a multi-token prediction head (MTP) to a package folder: a package in its subfolder `mtp`, and a graph.

The head is a decoder of one layer. Embedding, head and rotary tables are not written again: its graph reads those of
the target model's weights file. The folder itself gets the graph variant that gives hidden states.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

from embedllm.errors import ExportError
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.gguf.source import GgufSource
from embedllm.export.graphs import Model, build, stored_layout, write_variant
from embedllm.export.layout import Entry, Layout, lay_out
from embedllm.export.open_source import open_source
from embedllm.export.recipe import Recipe
from embedllm.export.writing.atomic_folder import atomic_folder, check_place
from embedllm.export.writing.metadata import facts_of, manifest_of
from embedllm.export.writing.plan import Plan, blocks
from embedllm.export.writing.stream import Write, check_source, filled, rounded, write_floats, write_matrices
from embedllm.files.atomic import write_json
from embedllm.hub.location import Location
from embedllm.package.architecture import Decoder, Linear, MultiTokenPrediction
from embedllm.package.entries import Graph
from embedllm.package.features import features_of
from embedllm.package.graph_variants import HIDDEN, MTP
from embedllm.package.package import MANIFEST, WEIGHTS, Package, open_package
from embedllm.package.packing import Packing, packings
from embedllm.package.tensors import layer_runs, outer_matrices, packed_alike, small_matrices, vectors

T = TypeVar("T")
FOLDER = "mtp"  # the head's, inside of the target model's
# How Qwen3-Next's and Qwen 3.5's checkpoints name a head's tensors.
_FC, _EMBEDDING_NORM, _HIDDEN_NORM = "mtp.fc", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"
_LAYER, _NORM = "mtp.layers.0.", "mtp.norm.weight"
_LAYER_OF_MODEL = re.compile(r"^(\w+\.)*layers\.0\.")
# one layer, which has attention in families where others have none
_ONE_LAYER = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "full_attention_interval": 1}


def add_mtp(folder: str | Path, checkpoint: str | Path, *, bits: int = 8, replace: bool = False) -> Path:
    """Adds the multi-token prediction head of a checkpoint to the package folder that was exported from it.

    checkpoint: as convert() has its source; its tensors `mtp.*` are read, and config.json. The head's layer is that of
    the family: `fc`, `pre_fc_norm_embedding`, `pre_fc_norm_hidden`, `layers.0`, `norm`.
    bits: of the head's matrices: 4, 8, 16 or 32. replace: a head that is there is exchanged for the new one.
    Returns the head's folder, which load() takes as draft=. Raises ExportError, UnsupportedModel, PackageError.
    """
    package = open_package(folder, whole=False)
    out = package.folder / FOLDER
    check_place(out, replace)
    location, reader = open_source(checkpoint)
    try:
        if isinstance(reader, GgufSource):
            raise ExportError(f"the head of a GGUF file is not read; give the checkpoint that '{location.name}' is of.")
        plan = _planned(describe_head(package, reader.config), bits)
        check_source(reader, plan)
        with atomic_folder(out, plan.layout.size, what="the head") as partial:
            _write(package, reader, location, plan, partial)
            check_place(out, replace)
    finally:
        reader.close()
    write_variant(package.folder, HIDDEN.name)
    return out


def describe_head(package: Package, config: Mapping[str, object]) -> Decoder:
    """The head that a checkpoint's config.json stands for, beside a package. Raises ExportError where both differ."""
    target = package.decoder
    described = describe(_one_layer(Config(config)))
    if (described.hidden, described.vocabulary) != (target.hidden, target.vocabulary):
        raise ExportError(
            f"the checkpoint's hidden size and vocabulary are {described.hidden} and {described.vocabulary:,}; those "
            f"of '{package.name}' are {target.hidden} and {target.vocabulary:,}. Take the checkpoint that the package "
            "was exported from."
        )
    norm, (layer,), hidden = described.norm, described.layers, target.hidden
    return dataclasses.replace(
        target,
        layers=(_renamed(layer),),
        norm=dataclasses.replace(norm, source=_NORM),
        position_embeddings=None,
        per_layer_embedding=None,
        altup_streams=None,
        vision=None,
        mtp=MultiTokenPrediction(
            embedding_norm=dataclasses.replace(norm, name="mtp.embedding_norm", source=_EMBEDDING_NORM),
            hidden_norm=dataclasses.replace(norm, name="mtp.hidden_norm", source=_HIDDEN_NORM),
            fc=Linear(name="mtp.fc", source=_FC, rows=hidden, columns=2 * hidden),
        ),
    )


def _one_layer(config: Config) -> Config:
    """The config of a model of one layer, in the section of the text model where there is one."""
    text = config.value("text_config")
    if isinstance(text, dict):
        return config.replaced({"text_config": {**text, **_ONE_LAYER}})
    return config.replaced(_ONE_LAYER)


def _renamed(described: T) -> T:
    """A description whose tensors are those of the head's layer, not of the model's first one."""
    if isinstance(described, str):
        return cast("T", _LAYER_OF_MODEL.sub(_LAYER, described))
    if isinstance(described, tuple):
        return cast("T", tuple(_renamed(each) for each in described))
    if not dataclasses.is_dataclass(described) or isinstance(described, type):
        return described
    fields = (field.name for field in dataclasses.fields(described) if field.name != "name")
    return dataclasses.replace(described, **{name: _renamed(getattr(described, name)) for name in fields})


def _planned(head: Decoder, bits: int) -> Plan:
    """What is stored of a head: all but the target model's embedding, head and rotary tables."""
    recipe = Recipe(bits=bits)
    runs = [*((linear,) for linear in outer_matrices(head)), *(run for each in head.layers for run in layer_runs(each))]
    packing = {
        linear.name: Packing(bits=bits, group_size=recipe.group_size,
                             symmetric=recipe.is_symmetric(bits, linear.columns, is_mixture=head.is_mixture))
        for run in runs for linear in run
    }  # fmt: skip
    alike = tuple(part for run in runs for part in packed_alike(run, packing))
    entries = [
        [*(Entry(vector.name, "F32", (vector.size,)) for vector in vectors(head)),
         *(Entry(f"{matrix.name}.weight", "F32", (matrix.rows, matrix.columns)) for matrix in small_matrices(head))],
        *(block for run in alike for block in blocks(run, packing[run[0].name])),
    ]  # fmt: skip
    return Plan(decoder=head, packing=packing, runs=alike, prequantized=frozenset(), constants={},
                search=recipe.way.search, layout=lay_out(entries, {"format": "embedllm"}))  # fmt: skip


def _write(package: Package, source: Source, location: Location, plan: Plan, partial: Path) -> None:
    def fill(write: Write, pool: ThreadPoolExecutor) -> None:
        write_floats(source, plan.decoder, write)
        write_matrices(plan, rounded(source, plan, pool, {}, {}), write)

    digest = filled(partial / WEIGHTS, plan.layout, fill, lambda count: None)
    theirs = stored_layout(package)
    own = {name: dataclasses.replace(placed, file=f"{FOLDER}/{WEIGHTS}") for name, placed in plan.layout.placed.items()}
    recipe = package.manifest.get("recipe")
    exact = isinstance(recipe, dict) and recipe.get("exact") is True
    model = Model(decoder=plan.decoder, layout=Layout(b"", {**theirs.placed, **own}, plan.layout.size),
                  packing={**packings(package.manifest), **plan.packing}, exact=exact)  # fmt: skip
    graph = Graph(file=MTP.file, variant=MTP.name, activations=MTP.activations)
    (partial / graph.file).write_bytes(build(graph.variant, model))
    tokens = package.manifest.get("tokens")
    assert isinstance(tokens, dict)  # a package that was opened
    facts = {**facts_of(location, Recipe(bits=next(iter(plan.packing.values())).bits), tokens, f"{package.name}-mtp"),
             "features": features_of(plan.packing.values(), is_encoder=False),
             "target_sha256": package.stored.sha256}  # fmt: skip
    write_json(partial / MANIFEST, manifest_of(partial, facts, plan.decoder, [graph], plan.packing, {WEIGHTS: digest}))
