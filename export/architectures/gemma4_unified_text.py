"""Gemma 4 12B (text only): Gemma 4's text decoder without per-layer embeddings and experts."""

from __future__ import annotations

from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma4_text import describe_text
from embedllm.package.architecture.decoder import Decoder

_DEFAULTS = {"sliding_window": 1024}
_WITHOUT = {
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": False,
}  # whatever config.json says, as in transformers


def describe(config: Config) -> Decoder:
    return describe_text(with_defaults(config), "gemma4_unified_text", "model")


def with_defaults(config: Config) -> Config:
    """The text model's config, as describe_text() of Gemma 4 reads it."""
    return config.filled(_DEFAULTS).replaced(_WITHOUT)
