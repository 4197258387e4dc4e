"""Sarvam 105B: DeepSeek-V3's MLA and experts, without a query latent and groups."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.mla import with_rotary_head_dim
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.deepseek_v3 import latent_shape
from embedllm.package.architecture.decoder import Decoder

_DEFAULTS = {"n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
             "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}  # fmt: skip
_KEYS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}


def describe(config: Config) -> Decoder:
    # the published config.json has keys of its own; one that transformers 5.24 wrote has those of DeepSeek-V3
    config = config.named({key: theirs for key, theirs in _KEYS.items() if not config.has(key)})
    config = with_rotary_head_dim(_with_yarn(config).filled(_DEFAULTS))
    return describe_shaped(config, latent_shape(config, "sarvam_mla", q_rank=None))


def _with_yarn(config: Config) -> Config:
    """The config with YaRN by its usual name."""
    scaling = config.value("rope_scaling")
    if not isinstance(scaling, dict) or "deepseek_yarn" not in (scaling.get("type"), scaling.get("rope_type")):
        return config
    return config.replaced({"rope_scaling": {**scaling, "rope_type": "yarn"}})
