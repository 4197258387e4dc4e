"""Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE: experts by SparseMixer; layer norms, biases, LongRoPE."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, mixture
from embedllm.export.architectures._shared.parts import NormKind, Parts
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.mixtral import placed
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.rope import LongRopeScaling, Rope

_CHOSEN = 2  # experts of a token; that is what SparseMixer chooses, whatever a config says


def describe(config: Config) -> Decoder:
    bias, window = config.flag("attention_bias", False), config.integer_or_none("sliding_window", None)
    shape = Shape(
        model_type="phimoe",
        norm=NormKind(kind="layer", bias=True, epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        head_bias=config.flag("lm_head_bias", False),
        rope_keys=RopeKeys(theta=1_000_000.0),
        window=lambda _: window,
        mixture=lambda parts, _: _mixture(parts),
    )
    decoder = describe_shaped(config, shape)
    return replace(decoder, rope=_scaled(config, decoder.rope))


def _mixture(parts: Parts) -> Moe:
    config = parts.config
    if (chosen := config.integer("num_experts_per_tok", _CHOSEN)) != _CHOSEN:
        raise UnsupportedModel(f"num_experts_per_tok is {chosen}; SparseMixer chooses {_CHOSEN} experts of a token.")
    experts = placed(Experts(count=config.integer("num_local_experts", 16), top_k=_CHOSEN,
                             inner=config.integer("intermediate_size")))  # fmt: skip
    noise = config.number("router_jitter_noise", 0.01, above=0)
    return replace(mixture(parts, experts, scoring_func="sparsemixer"), jitter_eps=noise)


def _scaled(config: Config, rope: Rope) -> Rope:
    """LongRoPE has factors of cos and sin of its own. Raises UnsupportedModel for another scaling."""
    if rope.scaling is None:
        return rope
    if not isinstance(rope.scaling, LongRopeScaling):
        kind = type(rope.scaling).__name__.removesuffix("Scaling").lower()
        raise UnsupportedModel(f"the rope type of a Phi-MoE is '{kind}'; the description knows default and longrope.")
    section = config.section("rope_parameters") or config.section("rope_scaling") or Config({})
    short, long = (section.number(f"{part}_mscale", above=0) for part in ("short", "long"))
    return replace(rope, scaling=replace(rope.scaling, attention_factor=short, long_attention_factor=long))
