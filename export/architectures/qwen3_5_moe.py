"""Qwen 3.5, 3.6 (35B-A3B, 122B-A10B, 397B-A17B): vision-language model; 2-D RoPE, M-RoPE, Gated DeltaNet, experts."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.qwen_vision import QWEN3_5, with_vision
from embedllm.export.architectures._shared.vision_language import text_of
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen2_moe import shared_mixture
from embedllm.export.architectures.qwen3_5_moe_text import ALWAYS, DEFAULTS
from embedllm.export.architectures.qwen3_5_text import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text = text_of(config).filled(DEFAULTS).replaced(ALWAYS)
    decoder = describe_text(text, "qwen3_5_moe", replace(LLAMA, model="model.language_model"), shared_mixture)
    return with_vision(decoder, config, QWEN3_5, interleaved=True)
