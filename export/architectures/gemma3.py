"""Gemma 3 (4B, 12B, 27B): vision-language checkpoint; text decoder only."""

from __future__ import annotations

from embedllm.errors import ExportError
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma3_text import describe_text
from embedllm.package.architecture import Decoder


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Gemma 3 says of its text model.")
    return describe_text(text, "gemma3", "language_model.model")
