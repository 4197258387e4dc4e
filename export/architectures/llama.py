"""Llama 2, 3, 3.1, 3.2, and many models that ship as model_type 'llama': RoPE, SwiGLU, RMS norms, GQA."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    return describe_shaped(config, Shape(model_type="llama", qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias))
