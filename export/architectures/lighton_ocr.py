"""LightOnOCR, LightOnOCR-2 (1B): vision-language model; Pixtral, patch merger, Qwen 3."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.default_sizes import with_default_sizes
from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.pixtral import describe_pixtral
from embedllm.export.architectures._shared.vision_language import both_sections, image_token
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.qwen3 import describe_text
from embedllm.package.architecture.decoder import Decoder

_NAMES = replace(LLAMA, model="model.language_model")


def describe(config: Config) -> Decoder:
    text, vision = both_sections(config, "a LightOnOCR")
    if (kind := text.text("model_type", "qwen3")) != "qwen3":
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows qwen3.")
    tied = config.flag("tie_word_embeddings", True)
    text = with_default_sizes(text, kind).replaced({"tie_word_embeddings": tied, "model_type": "lighton_ocr"})
    decoder = describe_text(text, "lighton_ocr", _NAMES)
    token = image_token(config, decoder, 151_655, older="image_token_index")
    encoder = describe_pixtral(
        config,
        vision,
        encoder="model.vision_encoder",
        projector="model.vision_projection",
        hidden=decoder.hidden,
        epsilon=decoder.norm.epsilon,
        image_token=token,
    )
    return replace(decoder, vision=encoder)
