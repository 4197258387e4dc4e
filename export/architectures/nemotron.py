"""Nemotron 4, Minitron: layer norms by 1 + weight, squared ReLU without a gate, partial rotary embedding (50%)."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="nemotron",
        names=replace(LLAMA, gate=""),
        norm=NormKind(kind="layer", weight_offset=1.0, bias=True, key="norm_eps", epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        activation="relu2",
        rope_keys=RopeKeys(part=0.5),
    )
    return describe_shaped(config, shape)
