"""Per-layer embeddings (PLE) and KV sharing across layers, shared by families."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from embedllm.errors import ExportError
from embedllm.export.architectures._shared.parts import RMS, Names, Parts
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.layer import PerLayerEmbedding, PerLayerInput
from embedllm.package.architecture.weights import Linear


def per_layer_embedding(
    config: Config, names: Names, embedding: Linear, *, layers: int, size: int, others: bool = False
) -> PerLayerEmbedding:
    """PLE of `layers` layers, `size` values each. others: there may be tokens without a row of their own."""
    columns, hidden = layers * size, embedding.columns
    rows = config.integer("vocab_size_per_layer_input", 262_144)
    if rows < embedding.rows and not others:
        raise ExportError(
            f"config.json: 'vocab_size_per_layer_input' is {rows} and 'vocab_size' {embedding.rows}; expected no fewer."
        )
    norm = RMS.named(config, "per_layer_embedding.norm", names.in_model("per_layer_projection_norm"), size)
    source = names.in_model("per_layer_model_projection")
    return PerLayerEmbedding(
        table=Linear(
            name="per_layer_embedding", source=names.in_model("embed_tokens_per_layer"), rows=rows, columns=columns
        ),
        projection=Linear(name="per_layer_embedding.projection", source=source, rows=columns, columns=hidden),
        norm=replace(norm, epsilon=norm.epsilon * hidden),  # as of a projection that is divided by sqrt(hidden)
        table_multiplier=math.sqrt(size),
        multiplier=math.sqrt(0.5),
    )


def per_layer_input(parts: Parts, size: int, activation: str) -> PerLayerInput:
    """How a layer reads them."""
    hidden = parts.sizes.hidden
    norm = parts.norm_kind.named(
        parts.config, f"{parts.name}.per_layer_input.norm", f"{parts.source}.post_per_layer_input_norm", hidden
    )
    return PerLayerInput(
        gate=parts.linear("per_layer_input.gate", "per_layer_input_gate", size, hidden),
        up=parts.linear("per_layer_input.up", "per_layer_projection", hidden, size),
        norm=norm,
        activation=activation,
    )


def kv_sources(config: Config, sliding: Sequence[bool]) -> list[int | None]:
    """The layer whose keys and values each layer reads: of the last ones, the last before them of their kind."""
    count = config.integer("num_kv_shared_layers", 0, least=0)
    own_count = max(len(sliding) - count, 0)
    last = {kind: index for index, kind in enumerate(sliding[:own_count])}
    if not set(sliding) <= set(last):
        raise ExportError(
            f"config.json: the last {count} of {len(sliding)} layers read the keys and values of earlier ones "
            "('num_kv_shared_layers'), and some have none of their kind before them ('layer_types')."
        )
    return [None if index < own_count else last[kind] for index, kind in enumerate(sliding)]
