"""Inputs and outputs of a decoder's graph, under the names that onnxruntime-genai and optimum use."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from embedllm.export.onnx.builder import FLOAT_TYPES, KV_PREFIXES
from embedllm.export.onnx.guess import guess_outputs
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import (
    HIDDEN_FROM,
    HIDDEN_STATES,
    INPUTS_EMBEDS,
    LAST_HIDDEN_STATE,
    POSITION_IDS,
    GraphVariant,
)
from embedllm.package.recurrent_state import state_kinds
from embedllm.package.tensors import ROPE_TABLES


def signature(
    decoder: Decoder, *, variant: GraphVariant, keeps_latent: bool
) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """The inputs and the outputs of the graph of a variant. keeps_latent: whether its KV holds latents."""
    kind, integer = FLOAT_TYPES[variant.activations], TensorProto.INT64
    kv_type, per_element = {8: (TensorProto.INT8, 1), 4: (TensorProto.UINT8, 2)}.get(variant.kv_bits, (kind, 1))
    inputs = [_info("input_ids", integer, ["batch", "tokens"])]
    if variant.lengths_from_mask:
        inputs += [_info("attention_mask", integer, ["batch", "total"])]
        if variant.takes_positions(decoder):
            inputs += [_info(POSITION_IDS, integer, ["batch", "tokens"])]
        if variant.takes_embeddings:
            inputs += [_info(INPUTS_EMBEDS, kind, ["batch", "tokens", decoder.image_width])]
        if variant.computes_mrope(decoder):
            inputs += [_info(POSITION_IDS, integer, [3, "batch", "tokens"])]
        selector = [_info("logits_from", integer, [1])]
        # 1: onnxruntime-genai makes room for every position of a prompt unless this says that only the last one comes
        logits_count, before = 1, "past"
    else:
        inputs += [
            _info(POSITION_IDS, integer, ["batch", "tokens"]),
            _info("seqlens_k", TensorProto.INT32, ["batch"]),
            _info("total_sequence_length", TensorProto.INT32, [1]),
        ]
        selector = [_info("logits_at", integer, ["logits"])]
        logits_count, before = "logits", "capacity"
    if variant.gives_hidden:
        selector.append(_info(HIDDEN_FROM, integer, [1]))
    if variant.takes_images(decoder):
        selector += [
            _info("image_features", kind, ["images", decoder.image_width]),  # rows of all images in this run
            _info("image_positions", integer, ["images", 2]),  # of each the sequence and the place in it
        ]
        if decoder.rope.mrope is not None:  # the rows of a sequence's tokens, by their places
            rope_shape = ["places", decoder.rope.rotary_dim // 2]
            selector += [_info(name, TensorProto.FLOAT, rope_shape) for name in ROPE_TABLES]
    outputs = [_info("logits", kind, ["batch", logits_count, decoder.head.rows])]
    if variant.gives_hidden:
        outputs.append(_info(LAST_HIDDEN_STATE, kind, ["batch", "hidden_rows", decoder.hidden]))
    if variant.guesses:
        outputs += guess_outputs()
    if decoder.is_draft_head:
        inputs.append(_info(HIDDEN_STATES, kind, ["batch", "tokens", decoder.hidden]))
    for number, attention in enumerate(decoder.kv_attentions):
        for infos, prefix, length in zip((inputs, outputs), KV_PREFIXES, (before, "capacity"), strict=True):
            heads, size = (1, attention.latent_dim) if keeps_latent else (attention.kv_heads, attention.head_dim)
            shape = ["batch", heads, length, size // per_element]
            parts = ("key",) if keeps_latent else ("key", "value")
            infos += [_info(f"{prefix}.{number}.{part}", kv_type, shape) for part in parts]
    for name, (state_kind, shape) in state_kinds(decoder, variant).items():
        kind_of_state, layer = name.split(".")
        for infos, called in zip((inputs, outputs), variant.states(kind_of_state, int(layer)), strict=True):
            infos.append(_info(called, FLOAT_TYPES[state_kind], ["batch", *shape]))
    return [*inputs, *selector], outputs


def _info(name: str, kind: int, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
