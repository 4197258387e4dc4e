"""ERNIE 4.5 0.3B: Llama with interleaved (GPT-J style) RoPE."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_shaped(config, ernie(config, "ernie4_5"))


def ernie(config: Config, model_type: str) -> Shape:
    bias = config.flag("use_bias", False)
    return Shape(
        model_type=model_type,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        tied=True,
        rope_keys=RopeKeys(theta=500_000.0),
        interleaved=True,
    )
