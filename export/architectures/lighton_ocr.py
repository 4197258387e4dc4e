"""LightOnOCR, LightOnOCR-2 (1B): vision-language model; Pixtral, patch merger, Qwen 3."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures import qwen3
from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.pixtral import describe_pixtral
from embedllm.export.architectures._shared.vision_language import both_sections, describe_by_kind, image_token
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

_NAMES = replace(LLAMA, model="model.language_model")


def describe(config: Config) -> Decoder:
    text, vision = both_sections(config, "a LightOnOCR")
    kinds = {"qwen3": qwen3.describe_text}
    decoder = describe_by_kind(config, text, kinds, tied=True, model_type="lighton_ocr", names=_NAMES)
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
