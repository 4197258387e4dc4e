"""Code World Model (CWM) 32B: Llama with sliding windows on three of four layers."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

_ROPE = {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}  # fmt: skip


def describe(config: Config) -> Decoder:
    if not config.has("rope_scaling"):  # where transformers 4 has it
        config = config.filled({"rope_parameters": _ROPE})
    shape = Shape(
        model_type="cwm",
        norm=NormKind(epsilon=1e-5),
        mlp_bias=config.flag("mlp_bias", False),
        rope_keys=RopeKeys(theta=1e6),
        window=windows(config, 8192, sliding_layers(config, lambda index: index % 4 != 0)),
    )
    return describe_shaped(config, shape)
