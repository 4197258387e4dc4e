"""HyperCLOVA X SEED Think: post-norms; embedding, attention, residual and logits multipliers."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, Sizes
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    names = LLAMA
    if config.flag("use_post_norm", True):
        names = replace(LLAMA, attention_post_norm="post_norm1", mlp_post_norm="post_norm2")
    shape = Shape(
        model_type="hyperclovax",
        names=names,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        scale=config.number("attention_multiplier", Sizes.of(config).head_dim ** -0.5, above=0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logits_multiplier=config.number("logits_scaling", 1.0),
    )
    return describe_shaped(config, shape)
