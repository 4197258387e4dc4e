"""OLMo 1 (1B, 7B): non-parametric layer norms."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    if config.has("clip_qkv"):
        raise UnsupportedModel(f"clip_qkv is {config.number('clip_qkv')}; this variant of the family is not described.")
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="olmo",
        norm=NormKind(kind="layer", weight=False, epsilon=1e-5, key="layer_norm_eps"),
        qkv_bias=bias,
        o_bias=bias,
    )
    return describe_shaped(config, shape)
