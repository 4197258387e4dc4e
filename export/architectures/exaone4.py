"""EXAONE 4.0 (1.2B, 32B): post-norms, q and k norms; NoPE layers where attention is global."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.olmo2 import NAMES
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_shaped(config, exaone(config, "exaone4"))


def exaone(config: Config, model_type: str) -> Shape:
    is_windowed = config.integer_or_none("sliding_window", 4096) is not None
    sliding = sliding_layers(
        config, lambda index: is_windowed and all_but_every(config.integer("sliding_window_pattern", 4))(index)
    )
    return Shape(
        model_type=model_type,
        names=NAMES,
        norm=NormKind(epsilon=1e-5),
        qk_norm="head",
        rope=lambda index: 0 if sliding[index] or not is_windowed else None,
        window=windows(config, 4096, sliding),
    )
