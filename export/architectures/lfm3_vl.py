"""LFM3-VL: vision-language model; convolutions over patches, 2-D RoPE, GQA, pixel unshuffle, LFM3."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.lfm3_vision import describe_lfm3_vision
from embedllm.export.architectures._shared.vision_language import both_sections, image_token, text_section
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.lfm3 import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text, vision = both_sections(config, "an LFM3-VL")
    if (kind := text.text("model_type", "lfm3")) != "lfm3":
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows lfm3.")
    text = text_section(config, text).replaced({"model_type": "lfm3_vl"})  # what messages call it
    decoder = describe_text(text, "lfm3_vl", "model.language_model")
    token = image_token(config, decoder, 125_030)
    encoder = describe_lfm3_vision(config, vision, hidden=decoder.hidden, image_token=token)
    return replace(decoder, vision=encoder)
