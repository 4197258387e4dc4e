"""Qwen3-VL (30B-A3B, 235B-A22B): vision-language model; 2-D RoPE, DeepStack, M-RoPE, a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, is_sparse, mixture, stacked
from embedllm.export.architectures._shared.parts import LLAMA, Parts
from embedllm.export.architectures._shared.qwen_vision import QWEN3, with_vision
from embedllm.export.architectures._shared.vision_language import text_of
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe


def describe(config: Config) -> Decoder:
    text = text_of(config.filled({"tie_word_embeddings": False}))
    bias = text.flag("attention_bias", False)
    shape = Shape(
        model_type="qwen3_vl_moe",
        names=replace(LLAMA, model="model.language_model"),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        mixture=lambda parts, index: _mixture(parts) if is_sparse(text, index) else None,
    )
    return with_vision(describe_shaped(text, shape), config, QWEN3, interleaved=True)


def _mixture(parts: Parts) -> Moe:
    config = parts.config
    experts = Experts(
        count=config.integer("num_experts", config.integer("num_local_experts", 60)),
        top_k=config.integer("num_experts_per_tok", 4),
        inner=config.integer("moe_intermediate_size", 1408),
    )
    return stacked(parts, mixture(parts, experts, norm_topk=True), experts)
