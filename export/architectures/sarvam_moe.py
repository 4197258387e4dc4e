"""Sarvam 30B: q and k norms, fused QKV; experts routed as in DeepSeek-V3."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import corrected
from embedllm.export.architectures._shared.parts import Names, Parts
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe

NAMES = Names(
    embedding="word_embeddings", qkv="attention.query_key_value", o="attention.dense",
    q_norm="attention.query_layernorm", k_norm="attention.key_layernorm",
)  # fmt: skip
_DEFAULTS = {"n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1024,
             "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}  # fmt: skip
_KEYS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts", "attention_bias": "use_qkv_bias"}


def describe(config: Config) -> Decoder:
    # the published config.json has keys of its own; one that transformers 5.24 wrote has those of DeepSeek-V3
    config = config.named({key: theirs for key, theirs in _KEYS.items() if not config.has(key)}).filled(_DEFAULTS)
    shape = Shape(
        model_type="sarvam_moe",
        names=NAMES,
        qkv_bias=config.flag("attention_bias", False),
        qk_norm="head" if config.flag("use_qk_norm", True) else "",
        rope_keys=RopeKeys(theta=8_000_000.0, part=1.0),  # as in GLM 4.5, whose code runs it
        mixture=_mixture,
    )
    return describe_shaped(config, shape)


def _mixture(parts: Parts, index: int) -> Moe | None:
    moe = corrected(parts, index)
    return moe and replace(moe, score_correction_bias=f"{parts.source}.mlp.gate.expert_bias")
