"""GLM-4 9B (2024), GLM-Edge: fused gate and up; partial rotary embedding (50%), interleaved (GPT-J style) RoPE."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(gate_up="mlp.gate_up_proj")


def describe(config: Config) -> Decoder:
    return describe_like(config, "glm", NAMES)


def describe_like(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder of a GLM whose tensors have these names."""
    shape = Shape(
        model_type=model_type,
        names=names,
        norm=NormKind(epsilon=1.5625e-7),
        qkv_bias=config.flag("attention_bias", True),
        rope_keys=RopeKeys(part=0.5),
        interleaved=True,
    )
    return describe_shaped(config, shape)
