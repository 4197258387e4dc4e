"""GLM 4.5, 4.5-Air, 4.6, 4.7: partial rotary embedding (50%); experts routed as in DeepSeek-V3."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import corrected
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    shape = Shape(
        model_type="glm4_moe",
        norm=NormKind(epsilon=1e-5),
        qkv_bias=config.flag("attention_bias", False),
        qk_norm="head" if config.flag("use_qk_norm", False) else "",
        rope_keys=RopeKeys(part=0.5),
        mixture=corrected,
    )
    config = config.filled({"num_experts_per_tok": 8, "moe_intermediate_size": 1408, "first_k_dense_replace": 1})
    return describe_shaped(config.filled({"norm_topk_prob": True, "n_routed_experts": 128}), shape)
