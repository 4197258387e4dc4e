"""DeepSeek V2, V2-Lite, Coder V2: multi-head latent attention (MLA); mixture of experts with shared experts."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.mla import latent_attention, with_rotary_head_dim
from embedllm.export.architectures._shared.moe import Experts, gated, grouped, mixture
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe


def describe(config: Config) -> Decoder:
    refuse(config, "norm_topk_prob", True)
    shape = Shape(
        model_type="deepseek_v2",
        mlp_bias=config.flag("mlp_bias", False),
        attention=lambda parts: latent_attention(parts, interleaved=True),
        mixture=_mixture,
    )
    return describe_shaped(with_rotary_head_dim(config), shape)


def _mixture(parts: Parts, index: int) -> Moe | None:
    config = parts.config
    if index < config.integer("first_k_dense_replace", 0, least=0):
        return None
    experts = Experts(
        count=config.integer("n_routed_experts", 64),
        top_k=config.integer("num_experts_per_tok", 6),
        inner=config.integer("moe_intermediate_size", 1407),
    )
    moe = replace(mixture(parts, experts), scale=config.number("routed_scaling_factor", 1.0))
    method = config.text("topk_method", "greedy")
    if method == "group_limited_greedy":
        moe = grouped(config, moe)
    elif method != "greedy":
        raise UnsupportedModel(f"topk_method is '{method}'; the description knows greedy and group_limited_greedy.")
    shared = replace(experts, inner=experts.inner * config.integer("n_shared_experts", 2))
    shared_mlp = gated(parts, "mlp.shared", "mlp.shared_experts", shared, bias=config.flag("mlp_bias", False))
    return replace(moe, shared=shared_mlp)
