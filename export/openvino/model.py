"""The OpenVINO model of a package: that of a decoder, or of an embedding or reranker model."""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.layout import CONSTANTS, VISION_CONSTANTS, Layout
from embedllm.export.openvino import decoder as decoder_model
from embedllm.export.openvino import encoder as encoder_model
from embedllm.export.openvino import vision as vision_model
from embedllm.package.architecture import Decoder
from embedllm.package.packing import Packing

FILE = decoder_model.FILE


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing]) -> bytes:
    """The file of the model; its weights are in the weights file of the layout."""
    emitter = decoder_model if decoder.encoder is None else encoder_model
    return emitter.build(decoder, layout, packing).encode()


def constants(decoder: Decoder, packing: Mapping[str, Packing]) -> dict[str, bytes]:
    """The small constants of the model, and of that of a vision encoder: by their entry in the weights file."""
    emitter = decoder_model if decoder.encoder is None else encoder_model
    found = {CONSTANTS: emitter.constants(decoder, packing)}
    if decoder.vision is not None:
        found[VISION_CONSTANTS] = vision_model.constants(decoder, packing)
    return found
