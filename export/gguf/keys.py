"""Keys of GGUF's metadata, behind "ARCHITECTURE.", that several modules here read."""

from __future__ import annotations

from embedllm.export.architectures.config import Config

PATTERN = "attention.sliding_window_pattern"
WINDOW = ("attention.sliding_window", PATTERN)
LOCAL_BASE = "rope.freq_base_swa"  # of the RoPE of layers with a sliding window
LOG_MULTIPLIER, ATTENTION_FACTOR = "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_attn_factor"
GATING, NEXTN_LAYERS = "expert_gating_func", "nextn_predict_layers"
POOLING = "pooling_type"  # what a model that embeds texts makes of the vectors of tokens


def windowed_layers(own: Config, layers: int) -> list[bool] | None:
    """Which layers have a sliding window: each says it, or all but each so-manieth have one; 0: all have.

    None where the file does not say it.
    """
    value = own.value(PATTERN)
    if value is None:
        return None
    if isinstance(value, bool):  # alike for every layer
        return [value] * layers
    if isinstance(value, list):
        return [bool(each) for each in value[:layers]]
    every = own.integer(PATTERN, least=0)
    return [every == 0 or (layer + 1) % every != 0 for layer in range(layers)]
