"""Qwen 2, Qwen 2.5, Qwen2.5-Coder: q, k and v biases; an optional sliding window on the later layers."""

from __future__ import annotations

from collections.abc import Callable

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, Names
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_text(config, "qwen2", LLAMA)


def describe_text(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder of a Qwen 2, whose tensors have these names."""
    shape = Shape(model_type=model_type, names=names, qkv_bias=True, window=late_window(config))
    return describe_shaped(config, shape)


def late_window(config: Config) -> Callable[[int], int | None]:
    """The window of each layer: 'layer_types' where given, else the layers from 'max_window_layers' on.

    What a config leaves out is taken from transformers 5.24.
    """
    if not config.flag("use_sliding_window", False):
        return lambda _: None
    first = config.integer("max_window_layers", 28, least=0)
    return windows(config, 4096, sliding_layers(config, lambda index: index >= first))
