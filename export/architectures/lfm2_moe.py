"""LFM2 8B-A1B: LFM2 with sigmoid routing and a score correction bias; the first layers are dense."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.moe import Experts, experts_of_layer, mixture
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.lfm2 import shape_of
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe


def describe(config: Config) -> Decoder:
    return describe_shaped(config, replace(shape_of(config, "lfm2_moe"), mixture=_mixture))


def _mixture(parts: Parts, index: int) -> Moe | None:
    config = parts.config
    if index < config.integer("num_dense_layers", 2, least=0):
        return None
    experts = Experts(
        count=experts_of_layer(config, 32),
        top_k=config.integer("num_experts_per_tok", 4),
        inner=config.integer("moe_intermediate_size", 1792),
        router="feed_forward.gate",
        place="feed_forward.experts",
        gate="w1",
        up="w3",
        down="w2",
    )
    is_corrected = config.flag("use_expert_bias", True)
    return replace(
        mixture(parts, experts, scoring_func="sigmoid", norm_topk=config.flag("norm_topk_prob", True)),
        score_correction_bias=f"{parts.source}.feed_forward.expert_bias" if is_corrected else "",
        scale=config.number("routed_scaling_factor", 1.0),
    )
