"""Phi-3, Phi-3.5, Phi-4, Phi-4-mini: fused QKV, fused gate and up, LongRoPE, partial rotary embedding."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")


def describe(config: Config) -> Decoder:
    window = config.integer_or_none("sliding_window", None)
    shape = Shape(model_type="phi3", names=NAMES, norm=NormKind(epsilon=1e-5), window=lambda _: window,
                  rope_keys=RopeKeys(part=1.0))  # fmt: skip
    return describe_shaped(config.filled({"original_max_position_embeddings": 4096}), shape)
