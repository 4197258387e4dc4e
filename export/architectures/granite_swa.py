"""Granite Swash 2B: Granite with attention sinks and windows; each layer has its own RoPE base, or is a NoPE layer."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.granite import multiplied
from embedllm.package.architecture.decoder import Decoder

_BASES = "layer_rope_theta"


def describe(config: Config) -> Decoder:
    shape = replace(multiplied(config, "granite_swa"), norm=NormKind(epsilon=1e-5), tied=True,
                    mlp_bias=config.flag("mlp_bias", False))  # fmt: skip
    kv_heads = config.integer_or_none("num_key_value_heads", 4)  # null: as many as of queries
    return describe_windowed(config.replaced({"num_key_value_heads": kv_heads}), shape)


def describe_windowed(config: Config, shape: Shape) -> Decoder:
    """The decoder of a Granite with sinks and windows. Raises UnsupportedModel for more than two RoPE bases."""
    bases = config.numbers(_BASES, config.integer("num_hidden_layers")) if config.has(_BASES) else None
    used = _distinct(bases or [])
    sliding = sliding_layers(config, lambda index: index % 4 != 0)
    shape = replace(shape, sinks="self_attn.sinks", window=windows(config, 128, sliding))
    if bases is None:
        return describe_shaped(config, shape)
    rope = [used.index(base) if base else None for base in bases]
    decoder = describe_shaped(config, replace(shape, has_rope=bool(used), rope=lambda index: rope[index]))
    ropes = [replace(decoder.rope, base=base) for base in used]  # which are scaled alike
    return replace(decoder, rope=ropes[0], local_rope=ropes[1] if ropes[1:] else None) if ropes else decoder


def _distinct(bases: list[float]) -> list[float]:
    """Without the zeros of NoPE layers. Raises UnsupportedModel, ExportError."""
    used = list(dict.fromkeys(base for base in bases if base))
    if wrong := [base for base in used if base <= 1]:
        raise ExportError(f"config.json: '{_BASES}' has {wrong[0]}; expected 0, of a NoPE layer, or a number > 1.")
    if len(used) > 2:
        raise UnsupportedModel(f"{_BASES} has {len(used)} bases; expected at most two, and 0 for NoPE layers.")
    return used
