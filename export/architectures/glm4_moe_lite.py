"""GLM 4.7 Flash: multi-head latent attention (MLA); experts routed as in DeepSeek-V3."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.mla import with_rotary_head_dim
from embedllm.export.architectures._shared.moe import corrected, is_dense
from embedllm.export.architectures._shared.parts import NormKind, Parts
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.deepseek_v3 import latent_shape
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe

_DEFAULTS = {"n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "norm_topk_prob": True,
             "routed_scaling_factor": 1.8, "qk_nope_head_dim": 192, "v_head_dim": 256,
             "first_k_dense_replace": 1}  # fmt: skip


def describe(config: Config) -> Decoder:
    shape = replace(latent_shape(config, "glm4_moe_lite", q_rank=768), norm=NormKind(epsilon=1e-5), mixture=_mixture,
                    rope_keys=RopeKeys(part=1.0))  # fmt: skip
    config = config.filled(_DEFAULTS)
    return describe_shaped(with_rotary_head_dim(config), shape)


def _mixture(parts: Parts, index: int) -> Moe | None:
    if is_dense(parts.config, index):
        return None
    return corrected(replace(parts, config=parts.config.replaced({"first_k_dense_replace": 0})), index)
