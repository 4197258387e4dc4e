"""dots.llm1: Qwen 3's attention; mixture of experts routed as in DeepSeek-V3."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import corrected
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    first = config.integer("max_window_layers", 62, least=0)
    sliding = sliding_layers(config, lambda index: index >= first)
    shape = Shape(
        model_type="dots1",
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        window=windows(config, 4096, sliding),
        mixture=corrected,
    )
    return describe_shaped(config.filled({"moe_intermediate_size": 1408}), shape)
