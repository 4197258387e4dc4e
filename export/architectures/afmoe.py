"""Trinity Nano, Mini, Large: gated attention, NoPE layers where it is global, four norms a layer; sigmoid experts."""

from __future__ import annotations

import math
from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.moe import Experts, experts_of_layer, gated, mixture
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.weights import Linear

_NAMES = Names(
    attention_post_norm="post_attention_layernorm", mlp_norm="pre_mlp_layernorm", mlp_post_norm="post_mlp_layernorm"
)


def describe(config: Config) -> Decoder:
    # keys of the published config.json that transformers 5.24 takes for granted
    refuse(config, "route_norm", False)
    if (function := config.text("score_func", "sigmoid")) != "sigmoid":
        raise UnsupportedModel(f"score_func is '{function}'; expected sigmoid.")
    bias = config.flag("attention_bias", False)
    sliding = sliding_layers(config, all_but_every(config.integer("global_attn_every_n_layers", 4)))
    is_scaled = config.flag("mup_enabled", False)
    shape = Shape(
        model_type="afmoe",
        names=_NAMES,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        gate=_gate,
        rope=lambda index: 0 if sliding[index] else None,
        window=windows(config, 1024, sliding),
        embedding_multiplier=math.sqrt(config.integer("hidden_size")) if is_scaled else 1.0,
        mixture=_mixture,
    )
    return describe_shaped(config, shape)


def _gate(parts: Parts) -> Linear:
    sizes = parts.sizes
    return parts.linear("attention.gate", "self_attn.gate_proj", sizes.heads * sizes.head_dim, sizes.hidden)


def _mixture(parts: Parts, index: int) -> Moe | None:
    config = parts.config
    if index < config.integer("num_dense_layers", 1, least=0):
        return None
    experts = Experts(
        count=experts_of_layer(config, 64),
        top_k=config.integer("num_experts_per_tok", 6),
        inner=config.integer("moe_intermediate_size", 1408),
        router="mlp.router.gate",
    )
    shared = replace(experts, inner=experts.inner * config.integer("num_shared_experts", 2))
    return replace(
        mixture(parts, experts, scoring_func="sigmoid", norm_topk=True),
        score_correction_bias=f"{parts.source}.mlp.expert_bias",
        scale=config.number("route_scale", 1.0),
        shared=gated(parts, "mlp.shared", "mlp.shared_experts", shared),
    )
