"""The OpenVINO model of a package: that of a decoder, or of an embedding or reranker model."""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.layout import Layout
from embedllm.export.openvino import decoder as decoder_model
from embedllm.export.openvino import encoder as encoder_model
from embedllm.package.architecture import Decoder
from embedllm.package.packing import Packing

FILE = decoder_model.FILE


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing]) -> bytes:
    """The file of the model; its weights are in the weights file of the layout."""
    emitter = decoder_model if decoder.encoder is None else encoder_model
    return emitter.build(decoder, layout, packing).encode()


def constants(decoder: Decoder, packing: Mapping[str, Packing]) -> bytes:
    """The small constants that the model needs, which are one entry of the weights file."""
    emitter = decoder_model if decoder.encoder is None else encoder_model
    return emitter.constants(decoder, packing)
