"""Qwen 1.5 MoE, Qwen 2 57B-A14B: Qwen 2 with a mixture of experts and a gated shared expert."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, experts_of_layer, gated, is_sparse, mixture
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe


def describe(config: Config) -> Decoder:
    last = config.integer("max_window_layers", 28, least=0)
    sliding = sliding_layers(config, lambda index: index % 2 == 0 and index < last)
    is_windowed = config.flag("use_sliding_window", False)
    shape = Shape(
        model_type="qwen2_moe",
        qkv_bias=config.flag("qkv_bias", True),
        window=windows(config, 4096, sliding) if is_windowed else lambda _: None,
        mixture=shared_mixture,
    )
    return describe_shaped(config, shape)


def shared_mixture(parts: Parts, index: int) -> Moe | None:
    """A layer's experts, and the shared one; None for a layer with an mlp."""
    config = parts.config
    if not is_sparse(config, index):
        return None
    experts = Experts(
        count=experts_of_layer(config, 60),
        top_k=config.integer("num_experts_per_tok", 4),
        inner=config.integer("moe_intermediate_size", 1408),
    )
    shared = replace(experts, inner=config.integer("shared_expert_intermediate_size", 5632))
    return replace(
        mixture(parts, experts, norm_topk=config.flag("norm_topk_prob", False)),
        shared=gated(parts, "mlp.shared", "mlp.shared_expert", shared),
        shared_gate=parts.linear("mlp.shared_gate", "mlp.shared_expert_gate", 1, parts.sizes.hidden),
    )
