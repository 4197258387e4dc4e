"""Qwen 3 30B-A3B, 235B-A22B, Qwen3-Coder: Qwen 3 with a mixture of experts."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, experts_of_layer, is_sparse, mixture
from embedllm.export.architectures._shared.parts import LLAMA, Names
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_text(config, "qwen3_moe", LLAMA)


def describe_text(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder of such a Qwen 3, whose tensors have these names."""
    bias = config.flag("attention_bias", False)
    window = config.integer_or_none("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    experts = Experts(
        count=experts_of_layer(config, 128),
        top_k=config.integer("num_experts_per_tok", 8),
        inner=config.integer("moe_intermediate_size", 768),
    )
    norm_topk = config.flag("norm_topk_prob", False)
    shape = Shape(
        model_type=model_type,
        names=names,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        window=lambda _: window,
        mixture=lambda parts, index: mixture(parts, experts, norm_topk=norm_topk) if is_sparse(config, index) else None,
    )
    return describe_shaped(config, shape)
