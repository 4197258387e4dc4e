"""Gemma 2: four norms a layer, attention and final logit soft-capping, a sliding window on every other layer."""

from __future__ import annotations

import math

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NORM = NormKind(weight_offset=1.0)
NAMES = Names(
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)


def describe(config: Config) -> Decoder:
    refuse(config, "use_bidirectional_attention", True)
    return describe_shaped(config, shape(config))


def shape(config: Config) -> Shape:
    bias = config.flag("attention_bias", False)
    return Shape(
        model_type="gemma2",
        names=NAMES,
        norm=NORM,
        qkv_bias=bias,
        o_bias=bias,
        tied=True,
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
        window=windows(config, 4096, sliding_layers(config, all_but_every(2))),
        scale=config.number("query_pre_attn_scalar", 256, above=0) ** -0.5,
        softcap=config.number_or_none("attn_logit_softcapping", 50.0, above=0) or 0.0,
        logits_softcap=config.number_or_none("final_logit_softcapping", 30.0, above=0) or 0.0,
        embedding_multiplier=math.sqrt(config.integer("hidden_size")),
    )
