"""Gemma 3 (4B, 12B, 27B): vision-language model; SigLIP, average pooling, Gemma 3's text decoder."""

from __future__ import annotations

import math
from dataclasses import replace

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.siglip import describe_siglip
from embedllm.export.architectures._shared.vision_language import image_token, text_section
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma3_text import describe_text
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import Vision
from embedllm.package.architecture.weights import Origin

_PROJECTOR = "multi_modal_projector"


def describe(config: Config) -> Decoder:
    text = config.section("text_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Gemma 3 says of its text model.")
    decoder = describe_text(text_section(config, text), "gemma3", "language_model.model")
    vision = config.section("vision_config")
    return decoder if vision is None else replace(decoder, vision=_vision(config, vision, decoder))


def _vision(config: Config, vision: Config, decoder: Decoder) -> Vision:
    """SigLIP, whose patches are pooled to `mm_tokens_per_image` rows; normed, then projected by a transposed matrix."""
    vision = vision.filled({"patch_size": 16, "num_attention_heads": 12, "hidden_size": 768})
    token = image_token(config, decoder, 262_144, "image_token_index")
    encoder = describe_siglip(
        vision,
        source="vision_tower.vision_model",
        projector=f"{_PROJECTOR}.mm_input_projection_weight",
        hidden=decoder.hidden,
        pixel_shuffle=1,
        image_token=token,
    )
    tokens = config.integer("mm_tokens_per_image", 256)
    side = math.isqrt(tokens)
    if side * side != tokens or encoder.grid % side:
        raise UnsupportedModel(
            f"mm_tokens_per_image is {tokens}; expected the square of a number that divides the {encoder.grid} patches "
            "of an image's side."
        )
    norm = NormKind(weight_offset=1.0, key="layer_norm_eps")
    return replace(
        encoder,
        projector=replace(encoder.projector, origin=Origin(rows=encoder.projector.rows, transposed=True)),
        projector_norm=norm.named(vision, "vision.projector_norm", f"{_PROJECTOR}.mm_soft_emb_norm", encoder.hidden),
        pooling=encoder.grid // side,
        bidirectional=True,
    )
