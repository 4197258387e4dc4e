"""DeepSeek V3, R1, Moonlight: MLA; sigmoid routing with a score correction bias, group-limited top-k."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.mla import latent_attention, with_rotary_head_dim
from embedllm.export.architectures._shared.moe import corrected
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

_DEFAULTS = {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 8,
             "topk_group": 4, "first_k_dense_replace": 3, "norm_topk_prob": True,
             "routed_scaling_factor": 2.5}  # fmt: skip


def describe(config: Config) -> Decoder:
    return describe_shaped(with_rotary_head_dim(config.filled(_DEFAULTS)), latent_shape(config, "deepseek_v3"))


def latent_shape(config: Config, model_type: str, *, q_rank: int | None = 1536) -> Shape:
    interleaved = config.flag("rope_interleave", True)
    return Shape(
        model_type=model_type,
        attention=lambda parts: latent_attention(parts, interleaved=interleaved, q_rank=q_rank),
        mixture=corrected,
    )
