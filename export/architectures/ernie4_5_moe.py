"""ERNIE 4.5 21B-A3B, 300B-A47B: ERNIE 4.5 with experts, a score correction bias and a shared expert."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.moe import Experts, gated, mixture
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.ernie4_5 import ernie
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe

_LEAST_SUM = 1e-9  # of the weights of a token's experts, which are divided by it


def describe(config: Config) -> Decoder:
    if (least := config.number("moe_norm_min", 1e-12)) > _LEAST_SUM:
        raise UnsupportedModel(f"moe_norm_min is {least:g}; expected {_LEAST_SUM:g} at most, which no sum reaches.")
    has_bias = config.flag("use_bias", False)
    return describe_shaped(config, replace(ernie(config, "ernie4_5_moe"), head_bias=has_bias, mixture=_mixture))


def _mixture(parts: Parts, index: int) -> Moe | None:
    config = parts.config
    first = config.integer("moe_layer_start_index", 1, least=0)
    last = config.integer("moe_layer_end_index", -1, least=-1)
    after = last != -1 and index > last
    if index < first or after or (index + 1) % config.integer("moe_layer_interval", 1):
        return None
    experts = Experts(
        count=config.integer("moe_num_experts", 64),
        top_k=config.integer("moe_k", 6),
        inner=config.integer("moe_intermediate_size", 1536),
    )
    moe = replace(
        mixture(parts, experts, norm_topk=True),
        score_correction_bias=f"{parts.source}.mlp.moe_statics.e_score_correction_bias",
        score_correction_bias_is_row=True,
    )
    together = config.integer("moe_num_shared_experts", 2, least=0)
    if not together:
        return moe
    shared = replace(experts, inner=experts.inner * together)
    shared_mlp = gated(parts, "mlp.shared", "mlp.shared_experts", shared, bias=config.flag("use_bias", False))
    return replace(moe, shared=shared_mlp)
