"""Llama 2, 3, 3.1, 3.2, and many models that ship as model_type 'llama': RoPE, SwiGLU, RMS norms, GQA."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, Names
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_text(config, "llama", LLAMA)


def describe_text(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder of a Llama, whose tensors have these names."""
    bias, mlp_bias = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    shape = Shape(model_type=model_type, names=names, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
    return describe_shaped(config, shape)
