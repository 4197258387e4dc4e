"""Mellum 2 12B-A2.5B: Qwen 3 MoE with windows, which have a RoPE of their own, and dense layers."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, experts_of_layer, is_dense, mixture
from embedllm.export.architectures._shared.rope import FULL, SLIDING, RopeKeys, describe_rope
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 500_000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
}


def describe(config: Config) -> Decoder:
    config = config.filled({"rope_parameters": _ROPES})
    head_dim, bias = config.integer("head_dim"), config.flag("attention_bias", False)
    sliding = sliding_layers(config, lambda index: False)
    local = describe_rope(config, head_dim, RopeKeys(layers=SLIDING)) if any(sliding) else None
    experts = Experts(
        count=experts_of_layer(config, 64),
        top_k=config.integer("num_experts_per_tok", 8),
        inner=config.integer("moe_intermediate_size", 896),
    )
    norm_topk = config.flag("norm_topk_prob", True)
    shape = Shape(
        model_type="mellum",
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        local_rope=local,
        rope=lambda index: int(sliding[index]),
        window=windows(config, 1024, sliding),
        mixture=lambda parts, at: None if is_dense(config, at, 0) else mixture(parts, experts, norm_topk=norm_topk),
    )
    return describe_shaped(config, shape)
