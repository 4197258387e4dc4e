"""Mistral 7B, Nemo, Small: Llama with one attention window for all layers, where 'sliding_window' is given."""

from __future__ import annotations

from embedllm.export.architectures.common import Shape, describe_shaped
from embedllm.export.config import Config
from embedllm.export.decoder import Decoder


def describe(config: Config) -> Decoder:
    window = config.integer_or_none("sliding_window", 4096)  # transformers' default; newer configs say null
    return describe_shaped(config, Shape(model_type="mistral", window=lambda _: window))
