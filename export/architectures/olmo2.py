"""OLMo 2: post-norms only; q and k norms over all heads together."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(
    attention_norm="",
    attention_post_norm="post_attention_layernorm",
    mlp_norm="",
    mlp_post_norm="post_feedforward_layernorm",
)


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="olmo2", names=NAMES, norm=NormKind(epsilon=1e-5), qkv_bias=bias, o_bias=bias, qk_norm="all"
    )
    return describe_shaped(config, shape)
