"""Granite 3.x, 4.0 dense: Llama with embedding, attention, residual and logits multipliers."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, Names
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_text(config, "granite", LLAMA)


def describe_text(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder of a Granite, whose tensors have these names."""
    shape = replace(multiplied(config, model_type), names=names, mlp_bias=config.flag("mlp_bias", False))
    return describe_shaped(config, shape)


def multiplied(config: Config, model_type: str) -> Shape:
    """Llama's shape with the four multipliers."""
    bias = config.flag("attention_bias", False)
    return Shape(
        model_type=model_type,
        qkv_bias=bias,
        o_bias=bias,
        scale=config.number("attention_multiplier", 1.0, above=0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logits_multiplier=1 / config.number("logits_scaling", 1.0, above=0),
    )
