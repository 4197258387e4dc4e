"""Ministral 3 (3B, 8B, 14B), text decoder: YaRN, length-dependent attention temperature (Llama 4)."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import AttentionTemperature
from embedllm.package.architecture.decoder import Decoder

_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
         "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}  # fmt: skip


def describe(config: Config) -> Decoder:
    return describe_text(config, "ministral3", "")


def describe_text(config: Config, model_type: str, place: str) -> Decoder:
    """The decoder of a Ministral 3 whose tensors have names that begin with `place`."""
    if config.section("rope_parameters") is None:
        config = config.replaced({"rope_parameters": _ROPE})
    rope = config.section("rope_parameters")
    assert rope is not None
    beta, temperature = rope.number("llama_4_scaling_beta", 0.0), None
    if beta:
        temperature = AttentionTemperature(beta=beta, original_context=rope.integer("original_max_position_embeddings"))
    window = config.integer_or_none("sliding_window", None)
    names = replace(LLAMA, model=f"{place}{LLAMA.model}", head=f"{place}{LLAMA.head}")
    shape = Shape(
        model_type=model_type,
        names=names,
        norm=NormKind(epsilon=1e-5),
        rope_keys=RopeKeys(theta=1_000_000.0),
        window=lambda _: window,
        temperature=temperature,
    )
    return describe_shaped(config, shape)
