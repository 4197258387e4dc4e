"""Qwen 2 and 2.5: biases on q, k and v; a window on the later layers when asked for."""

from __future__ import annotations

from collections.abc import Callable

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.common import Shape, describe_llama_shaped
from embedllm.export.config import Config
from embedllm.export.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_llama_shaped(config, Shape(model_type="qwen2", qkv_bias=True, window=late_window(config)))


def late_window(config: Config) -> Callable[[int], int | None]:
    """The window of each layer: 'layer_types' where given, else the layers from 'max_window_layers' on.

    What a config leaves out is taken from transformers 5.23.
    """
    if not config.flag("use_sliding_window", False):
        return lambda _: None
    size = config.integer_or_none("sliding_window", 4096)
    types = config.texts("layer_types")
    if types is not None:
        windowed = _windowed(types, config.integer("num_hidden_layers"))
        return lambda index: size if windowed[index] else None
    first = config.integer("max_window_layers", 28, least=0)
    return lambda index: size if index >= first else None


def _windowed(types: list[str], layers: int) -> list[bool]:
    if len(types) != layers:
        raise ExportError(f"config.json: 'layer_types' has {len(types)} entries; expected {layers}, one a layer.")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(f"layer type '{kind}' is not described; known: full_attention, sliding_attention.")
    return [kind == "sliding_attention" for kind in types]
