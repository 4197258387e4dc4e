"""Gemma 4 12B: the text decoder; no images, no audio, no video."""

from __future__ import annotations

from embedllm.errors import ExportError
from embedllm.export.architectures._shared.vision_language import with_tie_of
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma4_text import describe_text
from embedllm.export.architectures.gemma4_unified_text import with_defaults
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Gemma 4 says of its text model.")
    return describe_text(with_defaults(with_tie_of(config, text)), "gemma4_unified", "model.language_model")
