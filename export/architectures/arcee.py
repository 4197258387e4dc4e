"""AFM 4.5B: Llama with an MLP without a gate, squared ReLU."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="arcee",
        names=replace(LLAMA, gate=""),
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        activation="relu2",
    )
    return describe_shaped(config, shape)
