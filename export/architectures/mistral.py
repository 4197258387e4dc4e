"""Mistral 7B, Nemo, Small: Llama with one sliding window for all layers, where 'sliding_window' is given."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    window = config.integer_or_none("sliding_window", 4096)  # transformers' default; newer configs say null
    return describe_shaped(config, Shape(model_type="mistral", window=lambda _: window))
