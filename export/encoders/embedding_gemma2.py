"""EmbeddingGemma 2: the text encoder of a multimodal checkpoint; no images, no audio, no video."""

from __future__ import annotations

from embedllm.errors import ExportError
from embedllm.export.architectures.config import Config
from embedllm.export.encoders.embedding_gemma2_text import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what the model says of its text encoder.")
    return describe_text(text, "embedding_gemma2", "language_model")
