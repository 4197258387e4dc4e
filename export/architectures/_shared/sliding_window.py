"""Reads which layers of a model see all that came before them, and which only a window of it."""

from __future__ import annotations

from collections.abc import Callable

from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.rope import FULL, SLIDING
from embedllm.export.architectures.config import Config


def sliding_layers(config: Config, default: Callable[[int], bool]) -> list[bool]:
    """Whether each layer has a window, by 'layer_types', or by `default` where config.json has none.

    Raises what layer_types() raises.
    """
    types = layer_types(config, (FULL, SLIDING))
    if types is None:
        return [default(index) for index in range(config.integer("num_hidden_layers"))]
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
