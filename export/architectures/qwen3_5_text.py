"""Qwen 3.5 (dense), text only: Gated DeltaNet in three of four layers, gated attention."""

from __future__ import annotations

from collections.abc import Callable

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.gated_delta_net import Sizes, shape_of, stretches, whole
from embedllm.export.architectures._shared.parts import LLAMA, Names, Parts
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.weights import Linear


def describe(config: Config) -> Decoder:
    return describe_text(config, "qwen3_5_text", LLAMA)


def describe_text(
    config: Config,
    model_type: str,
    names: Names,
    mixture: Callable[[Parts, int], Moe | None] = lambda parts, index: None,
) -> Decoder:
    """Where the text model's tensors have these names. mixture: of Shape."""
    return describe_shaped(config, shape_of(config, model_type, names, _inputs, mixture))


def _inputs(parts: Parts, sizes: Sizes) -> tuple[Linear, ...]:
    hidden, heads = sizes.hidden, sizes.value_heads
    rows = {"q": sizes.keys, "k": sizes.keys, "v": sizes.values}
    return (
        *stretches(parts, "in_proj_qkv", hidden, rows, groups=1),
        whole(parts, "z", "in_proj_z", sizes.values, hidden),
        whole(parts, "beta", "in_proj_b", heads, hidden),
        whole(parts, "decay", "in_proj_a", heads, hidden),
    )
