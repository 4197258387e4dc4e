"""Where GGUF files have per-layer embeddings (PLE), AltUp and LAuReL.

Source: MODEL_TENSORS and TENSOR_NAMES in constants.py of the Python package gguf 0.19; llama.cpp's conversion/gemma.py.
"""

from __future__ import annotations

from embedllm.export.gguf.tensor_location import RowRange, TensorLocation, matrix, norm_weights
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer


def streams(decoder: Decoder) -> dict[str, TensorLocation]:
    """The locations of what all layers share. The projections of AltUp's streams are one tensor."""
    locations: dict[str, TensorLocation] = {}
    if (embedding := decoder.per_layer_embedding) is not None:
        if embedding.table is not None:
            locations |= matrix(embedding.table, "per_layer_token_embd")
        locations |= norm_weights(embedding.norm, "per_layer_proj_norm")
        locations |= matrix(embedding.projection, "per_layer_model_proj")
    if (altup := decoder.altup_streams) is not None:
        for linears, name in ((altup.projections, "altup_proj"), (altup.unembed_projections, "altup_unembd_proj")):
            for at, linear in enumerate(linears):
                locations |= matrix(linear, name, RowRange(at * linear.rows, linear.rows))
    return locations


def layer_parts(layer: Layer, block: str) -> dict[str, TensorLocation]:
    """The locations of what a layer has of them, and of what it multiplies the stream by."""
    locations: dict[str, TensorLocation] = {}
    if (own := layer.per_layer_input) is not None:
        locations |= matrix(own.gate, f"{block}.inp_gate") | matrix(own.up, f"{block}.proj")
        locations |= norm_weights(own.norm, f"{block}.post_norm")
    if (altup := layer.altup) is not None:
        locations |= norm_weights(altup.norm, f"{block}.altup_router_norm") | matrix(
            altup.router, f"{block}.altup_router"
        )
        locations |= matrix(altup.predict, f"{block}.altup_predict_coef")
        locations |= matrix(altup.correct, f"{block}.altup_correct_coef")
        locations[altup.scale] = TensorLocation(tensor=f"{block}.altup_correct_scale.weight")
    if (laurel := layer.laurel) is not None:
        locations |= matrix(laurel.down, f"{block}.laurel_l") | matrix(laurel.up, f"{block}.laurel_r")
        locations |= norm_weights(laurel.norm, f"{block}.laurel_post_norm")
    if layer.scale:
        locations[layer.scale] = TensorLocation(tensor=f"{block}.layer_output_scale.weight")
    return locations
