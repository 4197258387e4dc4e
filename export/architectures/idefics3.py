"""Idefics 3, Granite Docling (258M): vision-language model; SigLIP, pixel shuffle, Llama or Granite."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures import granite, llama
from embedllm.export.architectures._shared.parts import LLAMA
from embedllm.export.architectures._shared.siglip import describe_siglip
from embedllm.export.architectures._shared.vision_language import both_sections, describe_by_kind, image_token
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

_NAMES = replace(LLAMA, model="model.text_model")
_KINDS = {"llama": llama.describe_text, "granite": granite.describe_text}


def describe(config: Config) -> Decoder:
    return describe_idefics3(config, "idefics3")


def describe_idefics3(config: Config, model_type: str) -> Decoder:
    """The model of a config.json that is Idefics 3's in all but its model_type.

    Granite's embedding multiplier is of rows of features, too, and its logits are not scaled, as in transformers.
    """
    text, vision = both_sections(config, "a vision-language model")
    tied = text.flag("tie_word_embeddings", False)
    decoder = describe_by_kind(config, text, _KINDS, tied=tied, model_type=model_type, names=_NAMES)
    token = image_token(config, decoder, 128257)
    encoder = describe_siglip(
        vision,
        source="model.vision_model",
        projector="model.connector.modality_projection.proj",
        hidden=decoder.hidden,
        pixel_shuffle=config.integer("scale_factor", 2),
        image_token=token,
    )
    projector = replace(encoder.projector, weight_multiplier=decoder.embedding_multiplier)
    return replace(decoder, vision=replace(encoder, projector=projector), logits_multiplier=1.0)
