"""Ministral 3 and Mistral Small 3.1, 3.2: vision-language model; Pixtral, patch merger, text decoder."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures import lighton_ocr, ministral3
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.pixtral import describe_pixtral
from embedllm.export.architectures._shared.vision_language import image_token, text_section
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

_PLACE = "language_model."


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Mistral 3 says of its text model.")
    if text.text("model_type", "") == "qwen3":  # LightOnOCR, whose checkpoints had this model_type at first
        return lighton_ocr.describe(config)
    decoder, vision = _text(config, text), config.section("vision_config")
    if vision is None:
        return decoder
    token = image_token(config, decoder, 10, "image_token_index")
    epsilon = decoder.norm.epsilon
    encoder = describe_pixtral(config, vision, encoder="vision_tower", projector="multi_modal_projector",
                               hidden=decoder.hidden, epsilon=epsilon, image_token=token)  # fmt: skip
    return replace(decoder, vision=encoder)


def _text(config: Config, text: Config) -> Decoder:
    kind = text.text("model_type", "mistral")
    text = text_section(config, text.filled({"model_type": kind})).replaced({"model_type": "mistral3"})  # in messages
    if kind == "ministral3":
        return ministral3.describe_text(text, "mistral3", _PLACE)
    if kind not in ("mistral", "llama"):  # files of Mistral Small in GGUF call it llama
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows mistral, ministral3 and llama.")
    window = text.integer_or_none("sliding_window", 4096 if kind == "mistral" else None)
    names = replace(LLAMA, model=f"{_PLACE}{LLAMA.model}", head=f"{_PLACE}{LLAMA.head}")
    shape = Shape(model_type="mistral3", names=names, window=lambda _: window)
    return describe_shaped(text, shape)
