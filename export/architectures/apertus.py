"""Apertus 8B, 70B: MLP without a gate, xIELU activation with two learned parameters; q and k norms."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import ACTIVATIONS, Names, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(attention_norm="attention_layernorm", mlp_norm="feedforward_layernorm", gate="")


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="apertus",
        names=NAMES,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        activation="xielu",
        activations={**ACTIVATIONS, "xielu": "xielu"},
        rope_keys=RopeKeys(theta=12_000_000.0),
    )
    return describe_shaped(config, shape)
