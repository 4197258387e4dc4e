"""LFM3-VL: the text decoder, LFM3's; no images."""

from __future__ import annotations

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.vision_language import text_section
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.lfm3 import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what an LFM3-VL says of its text model.")
    if (kind := text.text("model_type", "lfm3")) != "lfm3":
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows lfm3.")
    text = text_section(config, text).replaced({"model_type": "lfm3_vl"})  # what messages call it
    return describe_text(text, "lfm3_vl", "model.language_model")
