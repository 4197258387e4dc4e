"""LFM3-VL: vision-language model; convolutions over patches, 2-D RoPE, GQA, pixel unshuffle, LFM3."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.lfm3_vision import describe_lfm3_vision
from embedllm.export.architectures._shared.vision_language import text_section
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.lfm3 import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text, vision = config.section("text_config"), config.section("vision_config")
    if text is None or vision is None:
        lacks = "text_config" if text is None else "vision_config"
        raise ExportError(f"config.json has no '{lacks}'; expected there what an LFM3-VL says of it.")
    if (kind := text.text("model_type", "lfm3")) != "lfm3":
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows lfm3.")
    text = text_section(config, text).replaced({"model_type": "lfm3_vl"})  # what messages call it
    decoder = describe_text(text, "lfm3_vl", "model.language_model")
    token = config.integer("image_token_id", 125_030, least=0)
    if token >= decoder.vocabulary:
        raise ExportError(f"image_token_id is {token}; expected a token of the model, 0 to {decoder.vocabulary - 1}.")
    encoder = describe_lfm3_vision(config, vision, hidden=decoder.hidden, image_token=token)
    return replace(decoder, vision=encoder)
