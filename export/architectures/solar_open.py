"""Solar Open 100B: Llama with experts routed as in DeepSeek-V3."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import corrected
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    shape = Shape(
        model_type="solar_open",
        norm=NormKind(epsilon=1e-5),
        qkv_bias=config.flag("attention_bias", False),
        rope_keys=RopeKeys(theta=1_000_000.0, part=1.0),
        mixture=corrected,
    )
    config = config.filled({"num_experts_per_tok": 8, "moe_intermediate_size": 1280})
    return describe_shaped(config.filled({"norm_topk_prob": True, "n_routed_experts": 128}), shape)
