"""Llama 2, 3, 3.1, 3.2 and the many models that ship as model_type 'llama'."""

from __future__ import annotations

from embedllm.export.architectures.common import Shape, describe_llama_shaped
from embedllm.export.config import Config
from embedllm.export.decoder import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    shape = Shape(model_type="llama", qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
    return describe_llama_shaped(config, shape)
