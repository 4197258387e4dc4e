"""Hunyuan A13B: Hunyuan with a mixture of experts and a shared expert."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.moe import Experts, gated, mixture
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.hunyuan_v1_dense import hunyuan, stretched
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe


def describe(config: Config) -> Decoder:
    return describe_shaped(stretched(config), replace(hunyuan(config, "hunyuan_v1_moe"), mixture=_mixture))


def _mixture(parts: Parts, index: int) -> Moe:
    config, layers = parts.config, parts.sizes.layers
    experts = Experts(
        count=config.one_or_each("num_experts", 1, layers)[index],
        top_k=config.one_or_each("moe_topk", 1, layers)[index],
        inner=config.integer("intermediate_size"),
        router="mlp.gate.wg",
    )
    moe = mixture(parts, experts, norm_topk=True)
    return replace(moe, shared=gated(parts, "mlp.shared", "mlp.shared_mlp", experts))
