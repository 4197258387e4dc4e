"""Command R7B, Command A: Command R with sliding windows; every fourth layer is global and a NoPE layer."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures import cohere
from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    sliding = sliding_layers(config, all_but_every(config.integer("sliding_window_pattern", 4)))
    shape = replace(
        cohere.shape(config, "cohere2"),
        rope=lambda index: 0 if sliding[index] else None,
        window=windows(config, 4096, sliding),
    )
    return describe_shaped(config, shape)
