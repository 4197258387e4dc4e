"""OLMo Hybrid 7B: Gated DeltaNet with pre-norms beside OLMo 2's attention, in NoPE layers or with RoPE."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.gated_delta_net import LINEAR, Sizes, delta_net, whole
from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.parts import LLAMA, Parts
from embedllm.export.architectures._shared.rope import FULL
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.olmo2 import NAMES
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.recurrent import DeltaNet
from embedllm.package.architecture.weights import Linear

_EPSILON = 1e-5  # of the delta rule's norm, whatever config.json says


def describe(config: Config) -> Decoder:
    config = _with_linear_sizes(config)
    types = layer_types(config, (FULL, LINEAR)) or _usual_types(config.integer("num_hidden_layers"))
    if FULL not in types:
        raise UnsupportedModel("no layer has attention; expected one at least, whose keys are as many as the tokens.")
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="olmo_hybrid",
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="all",
        has_rope=_has_rope(config),
        mixer=lambda parts, index: _mixer(parts) if types[index] == LINEAR else None,
    )
    before, after = (describe_shaped(config, replace(shape, names=names)) for names in (LLAMA, NAMES))  # norms
    pairs = zip(types, before.layers, after.layers, strict=True)
    return replace(after, layers=tuple(pre if kind == LINEAR else post for kind, pre, post in pairs))


def _with_linear_sizes(config: Config) -> Config:
    heads = config.integer("num_attention_heads")
    config = config.filled({"linear_num_key_heads": heads, "linear_num_value_heads": heads})
    key_dim = int(0.75 * config.integer("hidden_size") / config.integer("linear_num_key_heads"))
    config = config.filled({"linear_key_head_dim": key_dim})
    return config.filled({"linear_value_head_dim": 2 * config.integer("linear_key_head_dim")})


def _usual_types(layers: int) -> list[str]:
    """Of a config that does not say them: every fourth has attention, or the last one of fewer."""
    types = [FULL if index % 4 == 3 else LINEAR for index in range(layers)]
    return types if FULL in types else [*types[:-1], FULL]


def _has_rope(config: Config) -> bool:
    """False where 'rope_theta' is null, as in the published models; what is left out is transformers' base."""
    base = config.number_or_none("rope_theta", 10_000.0, above=1)
    return (config.section("rope_parameters") or Config({})).number_or_none("rope_theta", base, above=1) is not None


def _mixer(parts: Parts) -> DeltaNet:
    mixer = delta_net(parts, _inputs, norm="o_norm", out="o_proj")
    return replace(
        mixer,
        norm=replace(mixer.norm, epsilon=_EPSILON),
        allow_neg_eigval=parts.config.flag("linear_allow_neg_eigval", True),
    )


def _inputs(parts: Parts, sizes: Sizes) -> tuple[Linear, ...]:
    heads = sizes.value_heads
    rows = {"q": ("q_proj", sizes.keys), "k": ("k_proj", sizes.keys), "v": ("v_proj", sizes.values),
            "z": ("g_proj", sizes.values), "beta": ("b_proj", heads), "decay": ("a_proj", heads)}  # fmt: skip
    return tuple(whole(parts, name, where, count, sizes.hidden) for name, (where, count) in rows.items())
