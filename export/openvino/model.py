"""The OpenVINO model of a package: that of a decoder, or of an embedding or reranker model."""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.layout import CONSTANTS, LATENT_CONSTANTS, VISION_CONSTANTS, Layout
from embedllm.export.openvino import decoder as decoder_model
from embedllm.export.openvino import encoder as encoder_model
from embedllm.export.openvino import vision as vision_model
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import has_latents
from embedllm.package.packing import Packing

FILE, LATENT_FILE = decoder_model.FILE, decoder_model.LATENT_FILE


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing], *, is_latent: bool = False) -> bytes:
    """The file of the model; its weights are in the weights file of the layout. is_latent: its KV holds latents."""
    if is_latent:
        return decoder_model.build(decoder, layout, packing, is_latent=True).encode()
    emitter = decoder_model if decoder.encoder is None else encoder_model
    return emitter.build(decoder, layout, packing).encode()


def constants(decoder: Decoder, packing: Mapping[str, Packing]) -> dict[str, bytes]:
    """The small constants of the model and of what else there is of it: by their entry in the weights file."""
    emitter = decoder_model if decoder.encoder is None else encoder_model
    entries = {CONSTANTS: emitter.constants(decoder, packing)}
    if has_latents(decoder, packing):
        entries[LATENT_CONSTANTS] = decoder_model.constants(decoder, packing, is_latent=True)
    if decoder.vision is not None:
        entries[VISION_CONSTANTS] = vision_model.constants(decoder, packing)
    return entries
