"""Where a vision encoder's tensors lie in its GGUF file (mmproj).

Source: MODEL_TENSORS of the Python package gguf 0.19 (V_*), and load_tensors() of tools/mtmd/clip.cpp of llama.cpp.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from embedllm.export.gguf.projector_config import DOWN, UP
from embedllm.export.gguf.tensor_location import (
    ALL_ROWS,
    ChannelsFirst,
    InTurn,
    Order,
    PermutedRows,
    RowRange,
    TensorLocation,
    has_rows,
    interleaved_rows,
    matrix,
    norm_weights,
)
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.vision import DynamicVision, PatchMerger, PatchPooler, Vision
from embedllm.package.architecture.weights import Linear
from embedllm.package.tensors import CLIPS

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import Placed

_PATCHES = "v.patch_embd"
_BREAK = "v.token_embd.img_break"  # a row of the text model's embedding once more
_FIRST, _SECOND = f"{_PATCHES}.weight", f"{_PATCHES}.weight.1"  # of the two images that a patch covers


def with_own_order(vision: Vision | DynamicVision, described: Vision | DynamicVision) -> Vision | DynamicVision:
    """An encoder that is unfused() already: Gemma 3's projector is transposed in the file as in the checkpoint."""
    if isinstance(vision, DynamicVision) or isinstance(described, DynamicVision):
        return vision
    return dataclasses.replace(
        vision, projector=dataclasses.replace(vision.projector, origin=described.projector.origin)
    )


def vision_locations(vision: Vision | DynamicVision, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    """The location of every tensor that an encoder names, which is with_own_order() already."""
    locations = _patches(vision)
    if vision.positions is not None:
        locations |= matrix(vision.positions, "v.position_embd")
    for index, layer in enumerate(vision.layers):
        locations |= _layer(layer, index, tensors)
    if isinstance(vision, DynamicVision):
        merger = vision.merger
        if isinstance(merger, PatchPooler):
            return locations | _pooler(merger)
        if merger.merging is not None:
            return locations | _pixtral(vision, merger, merger.merging)
        up = "mm.1" if "mm.1.weight" in tensors else "mm.0"  # of LFM2-VL, and of Qwen's
        locations |= norm_weights(merger.square_norm, "mm.input_norm") | _merger(merger, "v.post_ln", up, "mm.2")
        for each in vision.deepstack:
            place = f"v.deepstack.{each.layer}"
            locations |= _merger(each.merger, f"{place}.norm", f"{place}.fc1", f"{place}.fc2")
        return locations
    is_normed = vision.projector_norm is not None
    locations |= norm_weights(vision.norm, "v.post_ln") | norm_weights(vision.projector_norm, "mm.soft_emb_norm")
    return locations | matrix(vision.projector, "mm.input_projection" if is_normed else "mm.model.fc")


def repeated(vision: Vision | DynamicVision) -> frozenset[str]:
    """Tensors of an encoder's file that the text model's file has, too."""
    merger = vision.merger if isinstance(vision, DynamicVision) else None
    return frozenset({_BREAK} if isinstance(merger, PatchMerger) and merger.merging is not None else ())


def _pixtral(vision: DynamicVision, merger: PatchMerger, merging: Linear) -> dict[str, TensorLocation]:
    """What Pixtral has of its own; llama.cpp rotates neighbouring rows of its queries and keys."""
    locations = norm_weights(vision.patches_norm, "v.pre_ln") | _merger(merger, "mm.input_norm", "mm.1", "mm.2")
    locations |= matrix(merging, "mm.patch_merger")
    for index, layer in enumerate(vision.layers):
        attention = layer.attention
        assert isinstance(attention, Attention)
        for part, linear in (("q", attention.q), ("k", attention.k)):
            order = PermutedRows(interleaved_rows(linear, attention.head_dim))
            locations |= matrix(linear, f"v.blk.{index}.attn_{part}", order)
    return locations


def _pooler(pooler: PatchPooler) -> dict[str, TensorLocation]:
    locations, source = matrix(pooler.projector, "mm.input_projection"), pooler.standardize
    if source:
        locations |= {f"{source}.{part}": TensorLocation(tensor=f"v.{part}") for part in ("std_bias", "std_scale")}
    return locations


def _patches(vision: Vision | DynamicVision) -> dict[str, TensorLocation]:
    is_dynamic = isinstance(vision, DynamicVision)
    order: Order = ALL_ROWS
    if is_dynamic and vision.temporal_patch_size > 1:
        order = InTurn((_FIRST, _SECOND), run=vision.patch_size)
    if is_dynamic and vision.patches_channels_last:
        order = ChannelsFirst(vision.patch_size)
    locations = {f"{vision.patches}.weight": TensorLocation(tensor=_FIRST, order=order)}
    if not is_dynamic or vision.patches_bias:
        locations[f"{vision.patches}.bias"] = TensorLocation(tensor=f"{_PATCHES}.bias")
    return locations


def _layer(layer: Layer, index: int, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    block, attention = f"v.blk.{index}", layer.attention
    assert isinstance(attention, Attention)
    assert isinstance(layer.mlp, Mlp)
    norms = {"ln1": layer.attention_norm, "ln2": layer.mlp_norm, "attn_post_norm": layer.attention_post_norm,
             "ffn_post_norm": layer.mlp_post_norm, "attn_q_norm": attention.q_norm,
             "attn_k_norm": attention.k_norm}  # fmt: skip
    locations = _clippable(attention.o, f"{block}.attn_out")
    for part, norm in norms.items():
        locations |= norm_weights(norm, f"{block}.{part}")
    together, start = f"{block}.attn_qkv", 0
    parts = {"q": attention.q, "k": attention.k, "v": attention.v}
    is_fused = has_rows(tensors, together, sum(linear.rows for linear in parts.values()))
    for part, linear in parts.items():
        own = matrix(linear, together, RowRange(start, linear.rows)) if is_fused else None
        locations |= own or _clippable(linear, f"{block}.attn_{part}")
        start += linear.rows
    return locations | _mlp(layer.mlp, index, tensors)


def _mlp(mlp: Mlp, index: int, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    """Older files have the names of up and down exchanged."""
    up, down = UP.format(index), DOWN.format(index)
    if mlp.up.rows != mlp.down.rows and has_rows(tensors, up, mlp.down.rows):
        up, down = down, up
    locations = _clippable(mlp.up, up) | _clippable(mlp.down, down)
    return locations if mlp.gate is None else locations | _clippable(mlp.gate, f"v.blk.{index}.ffn_gate")


def _clippable(linear: Linear, name: str) -> dict[str, TensorLocation]:
    """A matrix and the bounds that it is clipped to, if it is."""
    bounds = {f"{linear.clip}.{end}": TensorLocation(tensor=f"{name}.{end}") for end in CLIPS if linear.clip}
    return matrix(linear, name) | bounds


def _merger(merger: PatchMerger, norm: str, up: str, down: str) -> dict[str, TensorLocation]:
    return norm_weights(merger.norm, norm) | matrix(merger.up, up) | matrix(merger.down, down)
