"""Qwen3-Next, Qwen3-Coder-Next: Gated DeltaNet in most layers, gated attention, experts with a shared one."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.gated_delta_net import Sizes, shape_of, stretches
from embedllm.export.architectures._shared.moe import experts_of_layer
from embedllm.export.architectures._shared.parts import LLAMA, Parts
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen2_moe import shared_mixture
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Linear

_DEFAULTS = {
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}


def describe(config: Config) -> Decoder:
    config = config.filled({**_DEFAULTS, "num_experts": experts_of_layer(config, 512)})
    return describe_shaped(config, shape_of(config, "qwen3_next", LLAMA, _inputs, shared_mixture))


def _inputs(parts: Parts, sizes: Sizes) -> tuple[Linear, ...]:
    rows = {"q": sizes.keys, "k": sizes.keys, "v": sizes.values, "z": sizes.values}
    small = {"beta": sizes.value_heads, "decay": sizes.value_heads}
    groups, hidden = sizes.key_heads, sizes.hidden
    return (
        *stretches(parts, "in_proj_qkvz", hidden, rows, groups=groups),
        *stretches(parts, "in_proj_ba", hidden, small, groups=groups),
    )
