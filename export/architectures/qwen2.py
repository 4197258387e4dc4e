"""Qwen 2 and 2.5: biases on q, k and v; a window on the later layers when asked for."""

from __future__ import annotations

from collections.abc import Callable

from embedllm.export.architectures.common import Shape, describe_llama_shaped
from embedllm.export.config import Config
from embedllm.export.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_llama_shaped(config, Shape(model_type="qwen2", qkv_bias=True, window=late_window(config)))


def late_window(config: Config) -> Callable[[int], int | None]:
    """The window of each layer: 'layer_types' where given, else the layers from 'max_window_layers' on."""
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return lambda _: None
    size = config.integer("sliding_window")
    types = config.texts("layer_types")
    if types is not None:
        return lambda index: size if types[index] == "sliding_attention" else None
    first = config.integer("max_window_layers", 0, least=0)
    return lambda index: size if index >= first else None
