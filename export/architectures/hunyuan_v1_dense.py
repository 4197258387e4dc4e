"""Hunyuan 0.5B, 1.8B, 4B, 7B: q and k norms after RoPE; NTK-aware scaling of the RoPE base."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, NormKind, Sizes
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = replace(LLAMA, q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")


def describe(config: Config) -> Decoder:
    return describe_shaped(stretched(config), hunyuan(config, "hunyuan_v1_dense"))


def hunyuan(config: Config, model_type: str) -> Shape:
    bias = config.flag("attention_bias", False)
    return Shape(
        model_type=model_type,
        names=NAMES,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        norm_after_rope=True,
    )


def stretched(config: Config) -> Config:
    """The config with 'alpha', if there is one, in its base: what they call dynamic then depends on no length."""
    rope = config.section("rope_parameters") or config.section("rope_scaling")
    size = Sizes.of(config).head_dim
    if rope is None or not rope.has("alpha") or size < 3:
        return config
    theta = rope.number("rope_theta", config.number("rope_theta", 10_000.0, above=1), above=1)
    base = theta * rope.number("alpha", above=0) ** (size / (size - 2))
    return config.replaced({"rope_theta": base, "rope_parameters": None, "rope_scaling": None})
