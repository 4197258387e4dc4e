"""Gemma 3 (270M, 1B) and derived models: sliding windows with a local RoPE base on five of six layers."""

from __future__ import annotations

import math
from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import SLIDING, RopeKeys, describe_rope
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma2 import NAMES
from embedllm.package.architecture.decoder import Decoder

_LOCAL = RopeKeys(theta_key="rope_local_base_freq", layers=SLIDING)


def describe(config: Config) -> Decoder:
    return describe_text(config, "gemma3_text", "model")


def describe_text(config: Config, model_type: str, place: str) -> Decoder:
    """The decoder of a Gemma 3 whose tensors have names that begin with `place`."""
    refuse(config, "use_bidirectional_attention", True)
    bias = config.flag("attention_bias", False)
    sliding = sliding_layers(config, all_but_every(config.integer("sliding_window_pattern", 6)))
    shape = Shape(
        model_type=model_type,
        names=replace(NAMES, model=place, head=f"{place.removesuffix('model')}{NAMES.head}"),
        norm=NormKind(weight_offset=1.0),
        qkv_bias=bias,
        o_bias=bias,
        tied=True,
        qk_norm="head",
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
        rope_keys=RopeKeys(theta=1_000_000.0),
        local_rope=describe_rope(config, config.integer("head_dim"), _LOCAL),
        rope=lambda index: int(sliding[index]),
        window=windows(config, 4096, sliding),
        scale=config.number("query_pre_attn_scalar", 256, above=0) ** -0.5,
        softcap=config.number_or_none("attn_logit_softcapping", None, above=0) or 0.0,
        logits_softcap=config.number_or_none("final_logit_softcapping", None, above=0) or 0.0,
        embedding_multiplier=math.sqrt(config.integer("hidden_size")),
    )
    return describe_shaped(config, shape)
