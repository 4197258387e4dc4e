"""Granite Swash 3B-A600M: Granite Swash's attention with a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.moe import Experts, mixture
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.granite import multiplied
from embedllm.export.architectures.granite_swa import describe_windowed
from embedllm.export.architectures.granitemoeshared import shared_mlp
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe

_PLACE = "block_sparse_moe"


def describe(config: Config) -> Decoder:
    shape = replace(multiplied(config, "granitemoe_swa"), mixture=lambda parts, _: _mixture(parts))
    return describe_windowed(config, shape)


def _mixture(parts: Parts) -> Moe:
    config = parts.config
    experts = Experts(
        count=config.integer("num_local_experts", 8),
        top_k=config.integer("num_experts_per_tok", 2),
        inner=config.integer("intermediate_size"),
        router=f"{_PLACE}.router",
        place=f"{_PLACE}.experts",
    )
    moe = mixture(parts, experts, scoring_func="softmax_topk")
    shared = config.integer("shared_intermediate_size", 0, least=0)
    return replace(moe, shared=shared_mlp(parts, shared, "mlp.shared")) if shared else moe
