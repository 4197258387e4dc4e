"""Qwen 3 (dense), Qwen3-Embedding's decoder: q and k norms, no biases unless 'attention_bias' says so."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, Names
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen2 import late_window
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_text(config, "qwen3", LLAMA)


def describe_text(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder of a Qwen 3, whose tensors have these names."""
    bias, window = config.flag("attention_bias", False), late_window(config)
    shape = Shape(model_type=model_type, names=names, qkv_bias=bias, o_bias=bias, qk_norm="head", window=window)
    return describe_shaped(config, shape)
