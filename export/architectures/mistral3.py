"""Ministral 3 and Mistral Small 3.1, 3.2: vision-language checkpoint; text decoder only."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures import ministral3
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures.config import Config
from embedllm.package.architecture import Decoder

_PLACE = "language_model."


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Mistral 3 says of its text model.")
    kind = text.text("model_type", "mistral")
    if config.has("tie_word_embeddings"):
        text = text.filled({"tie_word_embeddings": config.flag("tie_word_embeddings")})
    text = text.replaced({"model_type": "mistral3"})  # what messages call it
    if kind == "ministral3":
        return ministral3.describe_text(text, "mistral3", _PLACE)
    if kind != "mistral":
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows mistral and ministral3.")
    window = text.integer_or_none("sliding_window", None)
    names = replace(LLAMA, model=f"{_PLACE}{LLAMA.model}", head=f"{_PLACE}{LLAMA.head}")
    shape = Shape(model_type="mistral3", names=names, window=lambda _: window)
    return describe_shaped(text, shape)
