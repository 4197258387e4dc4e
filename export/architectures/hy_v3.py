"""Hy3 (Hunyuan, HY V3): q and k norms; sigmoid experts with a score correction bias and a shared one."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, experts_of_layer, gated, is_dense, mixture
from embedllm.export.architectures._shared.parts import NormKind, Parts
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="hy_v3",
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        qk_norm="head",
        rope_keys=RopeKeys(theta=11_158_840.0),
        mixture=_mixture,
    )
    return describe_shaped(config, shape)


def _mixture(parts: Parts, index: int) -> Moe | None:
    config = parts.config
    if is_dense(config, index):
        return None
    experts = Experts(
        count=experts_of_layer(config, 192),
        top_k=config.integer("num_experts_per_tok", 8),
        inner=config.integer("moe_intermediate_size", 1536),
        router="mlp.router.gate",
    )
    shared = replace(experts, inner=experts.inner * config.integer("num_shared_experts", 1))
    bias = config.flag("mlp_bias", False)
    return replace(
        mixture(parts, experts, scoring_func="sigmoid", norm_topk=True),
        score_correction_bias=f"{parts.source}.mlp.expert_bias",
        scale=config.number("router_scaling_factor", 2.826),
        shared=gated(parts, "mlp.shared", "mlp.shared_mlp", shared, bias=bias),
    )
