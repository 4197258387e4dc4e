"""Lara 4 Mini: Gated DeltaNet beside attention with a window; NoPE layers where attention is global."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.gated_delta_net import LINEAR, Sizes, delta_net, stretches
from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.moe import Experts, experts_of_layer, gated, mixture
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures._shared.rope import FULL, SLIDING
from embedllm.export.architectures._shared.sliding_window import windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.weights import Linear

_DEFAULTS = {"linear_num_key_heads": 8, "linear_num_value_heads": 16}
_PATTERN = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)  # of a config that does not say what its layers are


def describe(config: Config) -> Decoder:
    config, layers = config.filled(_DEFAULTS), config.integer("num_hidden_layers")
    types = layer_types(config, (FULL, SLIDING, LINEAR)) or [_PATTERN[index % 5] for index in range(layers)]
    if set(types) == {LINEAR}:
        raise UnsupportedModel("no layer has attention; expected one at least, whose keys are as many as the tokens.")
    sliding, bias = [kind == SLIDING for kind in types], config.flag("attention_bias", False)
    shape = Shape(
        model_type="lara_mini",
        tied=True,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        rope=lambda index: 0 if sliding[index] else None,
        window=windows(config, 512, sliding),
        mixer=lambda parts, index: delta_net(parts, _inputs, norm="out_norm") if types[index] == LINEAR else None,
        mixture=_mixture,
    )
    return describe_shaped(config, shape)


def _inputs(parts: Parts, sizes: Sizes) -> tuple[Linear, ...]:
    rows = {"q": sizes.keys, "k": sizes.keys, "v": sizes.values, "z": sizes.values}
    small = {"beta": sizes.value_heads, "decay": sizes.value_heads}
    return stretches(parts, "in_proj", sizes.hidden, {**rows, **small}, groups=1)


def _mixture(parts: Parts, index: int) -> Moe:
    config = parts.config
    experts = Experts(
        count=experts_of_layer(config, 128),
        top_k=config.integer("num_experts_per_tok", 4),
        inner=config.integer("moe_intermediate_size", 512),
    )
    shared = replace(experts, inner=config.integer("shared_expert_intermediate_size", 512))
    moe = mixture(parts, experts, norm_topk=config.flag("norm_topk_prob", True))
    return replace(moe, shared=gated(parts, "mlp.shared", "mlp.shared_expert", shared))
