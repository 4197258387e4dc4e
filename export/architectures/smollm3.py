"""SmolLM3: every fourth layer is a NoPE layer."""

from __future__ import annotations

from embedllm.errors import ExportError
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    has_rope = _has_rope(config)
    is_windowed = config.flag("use_sliding_window", False)
    sliding = sliding_layers(config, lambda index: not has_rope[index])
    shape = Shape(
        model_type="smollm3",
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        tied=True,
        rope_keys=RopeKeys(theta=2_000_000.0),
        rope=lambda index: 0 if has_rope[index] else None,
        window=windows(config, None, sliding) if is_windowed else lambda _: None,
    )
    return describe_shaped(config, shape)


def _has_rope(config: Config) -> list[bool]:
    """Of each layer; in 'no_rope_layers' a 1 is of one with RoPE."""
    layers, every = config.integer("num_hidden_layers"), config.integer("no_rope_layer_interval", 4)
    marks = config.integers("no_rope_layers")
    if marks is None:
        return [(index + 1) % every != 0 for index in range(layers)]
    if len(marks) != layers:
        raise ExportError(f"config.json: 'no_rope_layers' has {len(marks)} entries; expected {layers}, one a layer.")
    return [mark != 0 for mark in marks]
