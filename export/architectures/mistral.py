"""Mistral: Llama with one attention window for all layers, where 'sliding_window' is given."""

from __future__ import annotations

from embedllm.export.architectures.common import Shape, describe_llama_shaped
from embedllm.export.config import Config
from embedllm.export.decoder import Decoder


def describe(config: Config) -> Decoder:
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    return describe_llama_shaped(config, Shape(model_type="mistral", window=lambda _: window))
