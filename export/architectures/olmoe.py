"""OLMoE 1B-7B: mixture of 64 experts; q and k norms over all heads together."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, experts_of_layer, mixture
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    if config.has("clip_qkv"):
        raise UnsupportedModel(f"clip_qkv is {config.number('clip_qkv')}; this variant of the family is not described.")
    bias = config.flag("attention_bias", False)
    experts = Experts(
        count=experts_of_layer(config, 64),
        top_k=config.integer("num_experts_per_tok", 8),
        inner=config.integer("intermediate_size"),
    )
    norm_topk = config.flag("norm_topk_prob", False)
    shape = Shape(
        model_type="olmoe",
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="all",
        mixture=lambda parts, _: mixture(parts, experts, norm_topk=norm_topk),
    )
    return describe_shaped(config, shape)
