"""Qwen2-VL (2B, 7B, 72B): vision-language model; 2-D RoPE, M-RoPE."""

from __future__ import annotations

from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.qwen_vision import QWEN2, with_vision
from embedllm.export.architectures._shared.vision_language import text_of
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen2 import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text = text_of(config).filled({"rms_norm_eps": 1e-5})
    return with_vision(describe_text(text, "qwen2_vl", LLAMA), config, QWEN2)
