"""Gemma 3n (E2B, E4B): multimodal checkpoint (vision, audio); text decoder only."""

from __future__ import annotations

from embedllm.errors import ExportError
from embedllm.export.architectures._shared.vision_language import text_section
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma3n_text import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Gemma 3n says of its text model.")
    return describe_text(text_section(config, text), "gemma3n", "model.language_model")
