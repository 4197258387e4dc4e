"""InternLM 3 8B: Llama with biases where 'qkv_bias' and 'bias' say so."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("bias", False) or config.flag("mlp_bias", False)  # transformers 5 writes the latter
    shape = Shape(
        model_type="internlm3",
        norm=NormKind(epsilon=1e-5),
        qkv_bias=config.flag("qkv_bias", False) or config.flag("attention_bias", False),
        o_bias=bias,
        mlp_bias=bias,
    )
    return describe_shaped(config, shape)
