"""Ministral 8B: Mistral with a sliding window on the layers that 'layer_types' lists."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    window = windows(config, 4096, sliding_layers(config, lambda _: True))
    return describe_shaped(config, Shape(model_type="ministral", window=window))
