"""Qwen3-VL (30B-A3B, 235B-A22B): vision-language checkpoint; text decoder only, a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, is_sparse, mixture
from embedllm.export.architectures._shared.parts import LLAMA, Parts
from embedllm.export.architectures._shared.vision_language import text_of
from embedllm.export.architectures.config import Config
from embedllm.package.architecture import Decoder, Linear, Mlp, Moe, Origin


def describe(config: Config) -> Decoder:
    text = text_of(config)
    bias = text.flag("attention_bias", False)
    shape = Shape(
        model_type="qwen3_vl_moe",
        names=replace(LLAMA, model="model.language_model"),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        mixture=lambda parts, index: _mixture(parts) if is_sparse(text, index) else None,
    )
    return describe_shaped(text, shape)


def _mixture(parts: Parts) -> Moe:
    """Of experts whose gates and ups are one tensor, and whose downs are another."""
    config, hidden = parts.config, parts.sizes.hidden
    experts = Experts(
        count=config.integer("num_experts", config.integer("num_local_experts", 60)),
        top_k=config.integer("num_experts_per_tok", 4),
        inner=config.integer("moe_intermediate_size", 1408),
    )
    moe, inner = mixture(parts, experts, norm_topk=True), experts.inner

    def placed(linear: Linear, where: str, start: int, each: int) -> Linear:
        """each: rows of an expert in the tensor."""
        origin = Origin(rows=each * experts.count, start=start)
        return replace(linear, source=f"{parts.source}.{experts.place}.{where}", origin=origin)

    def one(number: int, mlp: Mlp) -> Mlp:
        assert mlp.gate is not None, "experts are gated"
        first = 2 * inner * number
        return replace(
            mlp,
            gate=placed(mlp.gate, "gate_up_proj", first, 2 * inner),
            up=placed(mlp.up, "gate_up_proj", first + inner, 2 * inner),
            down=placed(mlp.down, "down_proj", hidden * number, hidden),
        )

    return replace(moe, experts=tuple(one(number, mlp) for number, mlp in enumerate(moe.experts)))
