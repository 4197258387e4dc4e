"""Gemma 4 (E2B, E4B, 26B-A4B, 31B): multimodal checkpoint (vision, audio); text decoder only."""

from __future__ import annotations

from embedllm.errors import ExportError
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma4_text import describe_text
from embedllm.package.architecture import Decoder


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Gemma 4 says of its text model.")
    return describe_text(text, "gemma4", "model.language_model")
