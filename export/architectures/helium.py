"""Helium 1 2B: Llama with interleaved (GPT-J style) RoPE."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    shape = Shape(
        model_type="helium",
        norm=NormKind(epsilon=1e-8),
        qkv_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        rope_keys=RopeKeys(theta=100_000.0),
        interleaved=True,
    )
    return describe_shaped(config, shape)
