"""A vision encoder and its projector in plain NumPy: what the graphs compute, tile by tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.images import check_tile
from embedllm.backends.reference.dynamic_vision import ReferenceDynamicVision
from embedllm.backends.reference.layers import Layers
from embedllm.backends.reference.math import activated, softmax
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.vision import DynamicVision, Vision
from embedllm.package.tensors import CLASS_TOKEN, PATCHES, layer_scales

if TYPE_CHECKING:
    from embedllm.backends.base import VisionEncoder
    from embedllm.backends.reference.layers import Weights
    from embedllm.package.architecture.layer import Layer
    from embedllm.types import F32


class ReferenceVision(Layers):
    """Follows the mathematics of embedllm/package/architecture literally, in float32."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        vision = weights.decoder.vision
        assert isinstance(vision, Vision)
        self._vision = vision

    def encode(self, pixel_values: F32) -> F32:
        vision, weights = self._vision, self._weights
        pixels = check_tile(vision, pixel_values)
        side, grid = vision.patch_size, vision.grid
        patches = pixels.reshape(3, grid, side, grid, side).transpose(1, 3, 0, 2, 4).reshape(grid * grid, -1)
        kernel = weights.tensor(f"{PATCHES}.weight").reshape(vision.hidden, -1)
        x = patches @ kernel.T + weights.tensor(f"{PATCHES}.bias")
        if vision.class_token:
            x = np.concatenate([weights.tensor(CLASS_TOKEN)[None], x])
        x = x + weights.tensor(f"{vision.positions.name}.weight")
        for index, layer in enumerate(vision.layers):
            x = self._layer(index, layer, x)
        x = x[1:] if vision.class_token else x
        by, grid = vision.pooling, grid // vision.pooling
        x = self._norm(x, vision.norm).reshape(grid, by, grid, by, vision.hidden).mean(axis=(1, 3))
        by, grid = vision.pixel_shuffle, grid // vision.pixel_shuffle
        squares = x.reshape(grid, by, grid, by, vision.hidden)
        shuffled = squares.transpose(0, 2, 1, 3, 4).reshape(vision.tile_tokens, -1)
        x = self._norm(shuffled, vision.projector_norm)
        if vision.projector_up is not None:
            x = activated(self._linear(x, vision.projector_up), "gelu")
        return self._linear(x, vision.projector)

    def _layer(self, index: int, layer: Layer, x: F32) -> F32:
        """The stream behind a layer, whose parts have a LayerScale or none."""
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.mlp, Mlp)
        scales = [self._weights.tensor(name) if name else np.float32(1) for name in layer_scales(index, layer)]
        attended: F32 = scales[0] * self._attention(index, layer.attention, self._norm(x, layer.attention_norm))
        x = x + attended
        output: F32 = scales[1] * self._mlp(layer.mlp, self._norm(x, layer.mlp_norm))
        return x + output

    def _attended(self, index: int, attention: Attention, q: F32, k: F32, v: F32) -> F32:
        scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(attention.head_dim))
        return (softmax(scores) @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def open_vision(weights: Weights) -> VisionEncoder:
    """The vision encoder of a folder."""
    is_dynamic = isinstance(weights.decoder.vision, DynamicVision)
    return ReferenceDynamicVision(weights) if is_dynamic else ReferenceVision(weights)
