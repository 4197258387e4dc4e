"""LFM2-VL and LFM2.5-VL: vision-language model; SigLIP 2 (NaFlex), pixel unshuffle, LFM2."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.default_sizes import with_default_sizes
from embedllm.export.architectures._shared.siglip2 import describe_siglip2
from embedllm.export.architectures._shared.vision_language import both_sections, image_token
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.lfm2 import describe_text
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    text, vision = both_sections(config, "an LFM2-VL")
    if (kind := text.text("model_type", "lfm2")) != "lfm2":
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows lfm2.")
    tied = config.flag("tie_word_embeddings", config.flag("tie_embedding", True))
    text = with_default_sizes(text, kind).replaced(
        {"tie_word_embeddings": tied, "model_type": "lfm2_vl"}
    )  # what messages call it
    decoder = describe_text(text, "lfm2_vl", "model.language_model")
    token = image_token(config, decoder, 396)
    encoder = describe_siglip2(config, vision, hidden=decoder.hidden, image_token=token)
    return replace(decoder, vision=encoder)
