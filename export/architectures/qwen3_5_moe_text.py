"""Qwen 3.5 and 3.6 mixtures, text only: Gated DeltaNet in three of four layers, gated attention, a shared expert."""

from __future__ import annotations

from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen2_moe import shared_mixture
from embedllm.export.architectures.qwen3_5_text import describe_text
from embedllm.package.architecture.decoder import Decoder

DEFAULTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
ALWAYS = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}  # whatever a config says of it


def describe(config: Config) -> Decoder:
    return describe_text(config.filled(DEFAULTS).replaced(ALWAYS), "qwen3_5_moe_text", LLAMA, shared_mixture)
