"""Gemma 1, CodeGemma: RMS norms by 1 + weight, embeddings times sqrt(hidden size), GELU in the gate."""

from __future__ import annotations

import math

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import ACTIVATIONS, NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NORM = NormKind(weight_offset=1.0)


def describe(config: Config) -> Decoder:
    refuse(config, "use_bidirectional_attention", True)
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="gemma",
        norm=NORM,
        qkv_bias=bias,
        o_bias=bias,
        tied=True,
        activation="gelu",
        activations={**ACTIVATIONS, "gelu": "gelu_tanh"},  # the first configs say so and mean the other
        embedding_multiplier=math.sqrt(config.integer("hidden_size")),
    )
    return describe_shaped(config, shape)
