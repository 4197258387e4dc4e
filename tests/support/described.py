"""Packages of decoders that are made by hand: random tensors for whatever a description names, and OpenVINO's graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export import Recipe
from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.graphs import Model, build, variants
from embedllm.export.writing.passthrough import prequantized
from embedllm.export.writing.plan import Plan, plan
from embedllm.export.writing.stream import check_source, write_weights
from embedllm.files.atomic import write_json
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture_json import to_json
from embedllm.package.features import FORMAT
from embedllm.package.package import MANIFEST, WEIGHTS, sha256
from embedllm.package.tensors import linears, outer_matrices, small_matrices, tables, vectors, vision_runs

if TYPE_CHECKING:
    from embedllm.types import F32


class RandomSource:
    """Normal values for every tensor of a decoder: matrices that keep a stream's size, norms about 1, small biases."""

    def __init__(self, decoder: Decoder, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.tensors: dict[str, F32] = {}
        for vector in vectors(decoder):
            about = 1 - vector.offset if vector.name.endswith("norm.weight") else 0
            size = vector.size if vector.origin is None else vector.origin.rows
            values = np.float32(about) + random.standard_normal(size).astype(np.float32) / np.float32(10)
            self.tensors[vector.source] = values.reshape(-1, vector.width) if vector.width > 1 else values
        found = [linear for layer in decoder.layers for linear in linears(layer)]
        found += [linear for run in vision_runs(decoder) for linear in run]
        found += [
            *small_matrices(decoder),
            *outer_matrices(decoder),
            *tables(decoder),
            *(() if decoder.tied else (decoder.head,)),
        ]
        for linear in found:
            rows = linear.rows if linear.origin is None else linear.origin.rows
            values = random.standard_normal((rows, linear.columns)).astype(np.float32)
            self.tensors[f"{linear.source}.weight"] = values / np.float32(linear.columns**0.5)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        assert self.tensors[name].shape == shape, name

    def rows(self, name: str, start: int, stop: int) -> F32:
        return self.tensors[name][start:stop]


def described_package(
    folder: Path,
    decoder: Decoder,
    recipe: Recipe,
    *,
    variant: str,
    seed: int = 0,
    source: Source | None = None,
) -> Path:
    """Writes a package with one graph; returns the folder. source: None: of that seed."""
    folder.mkdir(parents=True)
    source = source or RandomSource(decoder, seed)
    decided = plan(decoder, recipe, prequantized=prequantized(source, decoder))
    check_source(source, decided)
    hashes = {WEIGHTS: write_weights(source, decided, folder / WEIGHTS, lambda count: None)}
    graph = next(graph for graph in variants(decoder, decided.packing) if graph.variant == variant)
    model = Model(decoder=decoder, layout=decided.layout, packing=decided.packing, exact=recipe.exact)
    (folder / graph.file).write_bytes(build(variant, model))
    write_json(folder / MANIFEST, _manifest(folder, decided, recipe, [graph.as_json()], hashes))
    return folder


def _manifest(
    folder: Path, decided: Plan, recipe: Recipe, graphs: Sequence[Mapping[str, object]], hashes: dict[str, str]
) -> dict[str, object]:
    names = [WEIGHTS, *(str(graph["file"]) for graph in graphs)]
    return {
        "format": FORMAT,
        "name": folder.name,
        "tokens": {"bos": None, "pad": None, "stop": []},
        "recipe": dataclasses.asdict(recipe),
        "context": decided.decoder.context,
        "graphs": graphs,
        "quantization": {name: packing.entry for name, packing in decided.packing.items()},
        "architecture": to_json(decided.decoder),
        "files": {
            name: {"bytes": (folder / name).stat().st_size, "sha256": hashes.get(name) or sha256(folder / name)}
            for name in names
        },
    }
