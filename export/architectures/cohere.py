"""Command R, R+, Aya: parallel attention and MLP blocks, layer norms without biases, interleaved (GPT-J style) RoPE."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    own = replace(
        shape(config, "cohere"),
        qk_norm="heads" if config.flag("use_qk_norm", False) else "",
        rope_keys=RopeKeys(theta=500_000.0),
    )
    return describe_shaped(config, own)


def shape(config: Config, model_type: str) -> Shape:
    """What Command R and its successors share."""
    bias = config.flag("attention_bias", False)
    return Shape(
        model_type=model_type,
        names=replace(LLAMA, mlp_norm=""),
        norm=NormKind(kind="layer", key="layer_norm_eps", epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        tied=True,
        interleaved=True,
        parallel=True,
        logits_multiplier=config.number("logit_scale", 0.0625),
    )
