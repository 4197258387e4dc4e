"""Reads which layers of a model see all that came before them, and which only a window of it."""

from __future__ import annotations

from collections.abc import Callable

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.rope import FULL, SLIDING
from embedllm.export.architectures.config import Config


def sliding_layers(config: Config, default: Callable[[int], bool]) -> list[bool]:
    """Whether each layer has a window, by 'layer_types', or by `default` where config.json has none.

    Raises ExportError for a number of entries that is not that of the layers, UnsupportedModel for another kind.
    """
    layers = config.integer("num_hidden_layers")
    types = config.texts("layer_types")
    if types is None:
        return [default(index) for index in range(layers)]
    if len(types) != layers:
        raise ExportError(f"config.json: 'layer_types' has {len(types)} entries; expected {layers}, one a layer.")
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise UnsupportedModel(f"layer type '{kind}' is not described; known: {FULL}, {SLIDING}.")
    return [kind == SLIDING for kind in types]


def windows(config: Config, default: int | None, sliding: list[bool]) -> Callable[[int], int | None]:
    """The window of each layer: 'sliding_window' for those that have one.

    default: what a config without that key means.
    """
    size = config.integer_or_none("sliding_window", default)
    return lambda index: size if sliding[index] else None


def all_but_every(count: int) -> Callable[[int], bool]:
    """True for all layers but every `count`-th."""
    return lambda index: (index + 1) % count != 0
