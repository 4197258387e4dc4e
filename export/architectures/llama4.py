"""Llama 4 (Scout, Maverick): vision-language checkpoint; text decoder only."""

from __future__ import annotations

from embedllm.export.architectures._shared.vision_language import text_of
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.llama4_text import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    return describe_text(text_of(config), "llama4", "language_model.")
