"""Idefics 3: vision-language model; SigLIP, pixel shuffle, Llama."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.default_sizes import with_default_sizes
from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.siglip import describe_siglip
from embedllm.export.architectures._shared.vision_language import both_sections, image_token
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

_NAMES = replace(LLAMA, model="model.text_model")


def describe(config: Config) -> Decoder:
    return describe_idefics3(config, "idefics3")


def describe_idefics3(config: Config, model_type: str) -> Decoder:
    """The model of a config.json that is Idefics 3's in all but its model_type."""
    text, vision = both_sections(config, "a vision-language model")
    if (kind := text.text("model_type", "llama")) != "llama":
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows llama.")
    tied = config.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False))
    text = with_default_sizes(text, kind).replaced({"tie_word_embeddings": tied, "model_type": model_type})
    bias, mlp_bias = text.flag("attention_bias", False), text.flag("mlp_bias", False)
    shape = Shape(model_type=model_type, names=_NAMES, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
    decoder = describe_shaped(text, shape)
    token = image_token(config, decoder, 128257)
    encoder = describe_siglip(
        vision,
        source="model.vision_model",
        projector="model.connector.modality_projection.proj",
        hidden=decoder.hidden,
        pixel_shuffle=config.integer("scale_factor", 2),
        image_token=token,
    )
    return replace(decoder, vision=encoder)
