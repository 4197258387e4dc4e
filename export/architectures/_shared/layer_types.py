"""Reads 'layer_types' of config.json: what each layer of a model is."""

from __future__ import annotations

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.config import Config


def layer_types(config: Config, known: tuple[str, ...]) -> list[str] | None:
    """One for each layer; None where config.json has none.

    Raises ExportError for a number of entries that is not that of the layers, UnsupportedModel for a type that is not
    in `known`.
    """
    layers, types = config.integer("num_hidden_layers"), config.texts("layer_types")
    if types is None:
        return None
    if len(types) != layers:
        raise ExportError(f"config.json: 'layer_types' has {len(types)} entries; expected {layers}, one a layer.")
    if unknown := [kind for kind in types if kind not in known]:
        raise UnsupportedModel(f"layer type '{unknown[0]}' is not described; known: {', '.join(known)}.")
    return types
