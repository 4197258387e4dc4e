"""K-EXAONE 236B-A23B: EXAONE 4's windows with pre-norms; experts routed as in DeepSeek-V3."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.moe import corrected, is_dense
from embedllm.export.architectures._shared.parts import LLAMA, Parts
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.exaone4 import exaone
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe

_DEFAULTS = {"num_experts_per_tok": 8, "moe_intermediate_size": 1024, "norm_topk_prob": True,
             "routed_scaling_factor": 2.5}  # fmt: skip


def describe(config: Config) -> Decoder:
    shape = replace(exaone(config, "exaone_moe"), names=LLAMA, mixture=_mixture)
    count, shared = config.integer("num_experts", 64), config.integer("num_shared_experts", 1)
    return describe_shaped(config.filled({**_DEFAULTS, "n_routed_experts": count, "n_shared_experts": shared}), shape)


def _mixture(parts: Parts, index: int) -> Moe | None:
    if is_dense(parts.config, index):
        return None
    config = parts.config.replaced({"first_k_dense_replace": 0})
    moe = corrected(replace(parts, config=config), index)
    assert moe is not None
    return replace(moe, score_correction_bias=f"{parts.source}.mlp.e_score_correction_bias")
