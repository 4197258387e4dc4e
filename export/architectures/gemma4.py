"""Gemma 4 (E2B, E4B, 26B-A4B, 31B): images of any size, average pooling, Gemma 4's text decoder; no audio, no video."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError
from embedllm.export.architectures._shared.gemma4_vision import describe_vision
from embedllm.export.architectures._shared.vision_language import text_section
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma4_text import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Gemma 4 says of its text model.")
    decoder = describe_text(text_section(config, text), "gemma4", "model.language_model")
    vision = config.section("vision_config")
    return decoder if vision is None else replace(decoder, vision=describe_vision(config, vision, text, decoder))
