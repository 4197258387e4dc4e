"""Qwen 3 (dense), Qwen3-Embedding's decoder: q and k norms, no biases unless 'attention_bias' says so."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen2 import late_window
from embedllm.package.architecture import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    shape = Shape(model_type="qwen3", qkv_bias=bias, o_bias=bias, qk_norm="head", window=late_window(config))
    return describe_shaped(config, shape)
