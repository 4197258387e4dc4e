"""Apertus 8B, 70B: MLP without a gate, xIELU activation with two learned parameters; q and k norms."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import ACTIVATIONS, Names, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(attention_norm="attention_layernorm", mlp_norm="feedforward_layernorm", gate="")

# of a config without a section of RoPE: transformers leaves out what is its default
_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}  # fmt: skip


def describe(config: Config) -> Decoder:
    return describe_text(config, "apertus", NAMES)


def describe_text(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder, where its tensors have these names."""
    if config.section("rope_parameters") is None and config.section("rope_scaling") is None:
        config = config.replaced({"rope_scaling": _ROPE})
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type=model_type,
        names=names,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        activation="xielu",
        activations={**ACTIVATIONS, "xielu": "xielu"},
        rope_keys=RopeKeys(theta=12_000_000.0),
    )
    return describe_shaped(config, shape)
