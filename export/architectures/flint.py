"""Flint: attention sinks, q and k norms, NoPE layers where attention is global; sigmoid experts with a shared one."""

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
    last, bias = config.integer("num_hidden_layers") - 1, config.flag("attention_bias", False)
    sliding = sliding_layers(config, lambda index: index > 1 and index % 4 != 1 and index != last)
    shape = Shape(
        model_type="flint",
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        sinks="self_attn.softmax_offset",
        rope=lambda index: 0 if sliding[index] else None,
        window=windows(config, 513, sliding),
        mixture=_mixture,
    )
    return describe_shaped(config.filled({"mlp_only_layers": [0, 1]}), shape)


def _mixture(parts: Parts, index: int) -> Moe | None:
    config = parts.config
    if not is_sparse(config, index):
        return None
    experts = Experts(
        count=experts_of_layer(config, 256),
        top_k=config.integer("num_experts_per_tok", 6),
        inner=config.integer("moe_intermediate_size", 512),
    )
    shared = replace(experts, inner=config.integer("shared_expert_intermediate_size", 1024))
    moe = mixture(parts, experts, scoring_func="sigmoid", norm_topk=config.flag("norm_topk_prob", True))
    return replace(moe, shared=gated(parts, "mlp.shared", "mlp.shared_expert", shared))
