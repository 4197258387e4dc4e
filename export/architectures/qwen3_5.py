"""Qwen 3.5 (dense): vision-language model; 2-D RoPE, M-RoPE, Gated DeltaNet in three of four layers."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError
from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.qwen_vision import QWEN3_5, with_vision
from embedllm.export.architectures._shared.vision_language import text_section
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen3_5_text import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Qwen 3.5 says of its text model.")
    names = replace(LLAMA, model="model.language_model")
    decoder = describe_text(text_section(config, text), "qwen3_5", names)
    return with_vision(decoder, config, QWEN3_5, interleaved=True)
