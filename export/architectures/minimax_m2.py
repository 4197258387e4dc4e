"""MiniMax M2: experts by sigmoids with a score correction bias; q and k norms over all heads, partial rotary (50%)."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, mixture
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe

_PLACE = "block_sparse_moe"


def describe(config: Config) -> Decoder:
    if (scoring := config.text("scoring_func", "sigmoid")) != "sigmoid":
        raise UnsupportedModel(f"scoring_func is '{scoring}'; expected 'sigmoid'.")
    if config.has("rotary_dim"):
        part = config.integer("rotary_dim") / config.integer("head_dim")
        config = config.filled({"partial_rotary_factor": part})
    shape = Shape(
        model_type="minimax_m2",
        qk_norm="all" if config.flag("use_qk_norm", True) else "",
        rope_keys=RopeKeys(theta=5_000_000.0, part=1.0),
        mixture=lambda parts, _: _mixture(parts),
    )
    return describe_shaped(config, shape)


def _mixture(parts: Parts) -> Moe:
    config = parts.config
    experts = Experts(
        count=config.integer("num_local_experts", 256),
        top_k=config.integer("num_experts_per_tok", 8),
        inner=config.integer("intermediate_size", 1536),
        router=f"{_PLACE}.gate",
        place=f"{_PLACE}.experts",
        gate="w1",
        up="w3",
        down="w2",
    )
    moe = mixture(parts, experts, scoring_func="sigmoid", norm_topk=True)
    return replace(moe, score_correction_bias=f"{parts.source}.{_PLACE}.e_score_correction_bias")
