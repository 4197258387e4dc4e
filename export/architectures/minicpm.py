"""MiniCPM 1B, 2B, MiniCPM4: Llama with embedding, residual and logits multipliers."""

from __future__ import annotations

import math

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    hidden = config.integer("hidden_size")
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="minicpm",
        qkv_bias=bias,
        o_bias=bias,
        tied=True,
        embedding_multiplier=config.number("scale_emb", 1.0),
        residual_multiplier=config.number("scale_depth", 1.0) / math.sqrt(config.integer("num_hidden_layers")),
        logits_multiplier=config.number("dim_model_base", 1.0, above=0) / hidden,
    )
    return describe_shaped(config, shape)
