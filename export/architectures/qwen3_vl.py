"""Qwen3-VL (2B, 4B, 8B, 32B): vision-language model; 2-D RoPE, DeepStack, M-RoPE."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.qwen_vision import QWEN3, with_vision
from embedllm.export.architectures._shared.vision_language import text_of
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen3 import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    decoder = describe_text(text_of(config), "qwen3_vl", replace(LLAMA, model="model.language_model"))
    return with_vision(decoder, config, QWEN3, interleaved=True)
