"""A vision encoder of images of any size in plain NumPy: what the graphs compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.image_grid import encoder_inputs
from embedllm.backends.reference.layers import Layers
from embedllm.backends.reference.math import activated, softmax
from embedllm.package.architecture.vision import DynamicVision, PatchPooler
from embedllm.package.graph_variants import PATCH_ORDER, POSITIONS, ROPE, WINDOW_MASK, WINDOWS
from embedllm.package.tensors import PATCHES, POOLED, patch_convolution_name

if TYPE_CHECKING:
    from embedllm.backends.reference.layers import Weights
    from embedllm.package.architecture.attention import Attention
    from embedllm.package.architecture.recurrent import ShortConv
    from embedllm.package.architecture.vision import PatchMerger
    from embedllm.types import F32


class ReferenceDynamicVision(Layers):
    """Follows the mathematics of embedllm/package/architecture literally, in float32."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        vision = weights.decoder.vision
        assert isinstance(vision, DynamicVision)
        self._vision = vision
        self._inputs: dict[str, np.ndarray] = {}  # of the image that is being encoded

    def encode(self, pixel_values: F32) -> F32:
        vision, inputs = self._vision, encoder_inputs(self._vision, pixel_values)
        self._inputs = inputs
        x = self._patches(inputs["pixel_values"][0])[inputs[PATCH_ORDER]]
        x = self._norm(x, vision.patches_norm)
        if vision.positions is not None:
            places, weights = (inputs[name] for name in POSITIONS)
            x = x + (self._weights.tensor(f"{vision.positions.name}.weight")[places] * weights).sum(axis=0)
        x = self._norm(x, vision.positions_norm)
        deepstack: dict[int, F32] = {}
        for index, layer in enumerate(vision.layers):
            x = self._layer(index, layer, x)
            deepstack |= {
                place: self._merged(each.merger, x)
                for place, each in enumerate(vision.deepstack)
                if each.layer == index
            }
        return np.concatenate([self._rows(x), *(deepstack[at] for at in sorted(deepstack))], axis=1)

    def _patches(self, pixels: F32) -> F32:
        """Row by row, [patches, hidden]: each as many times in time as the convolution has images."""
        vision, side = self._vision, self._vision.patch_size
        rows, columns = (length // side for length in pixels.shape[1:])
        patches = pixels.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4).reshape(rows * columns, 3, -1)
        if vision.pixels_norm is not None:
            normed = self._norm(patches.transpose(0, 2, 1).reshape(rows * columns, -1), vision.pixels_norm)
            patches = normed.reshape(rows * columns, -1, 3).transpose(0, 2, 1)
        kernel = self._weights.tensor(f"{PATCHES}.weight")
        if vision.patches_channels_last:
            kernel = kernel.reshape(vision.hidden, side * side, 3).transpose(0, 2, 1)
        else:
            kernel = kernel.reshape(vision.hidden, 3, vision.temporal_patch_size, side * side).sum(axis=2)
        x: F32 = patches.reshape(rows * columns, -1) @ kernel.reshape(vision.hidden, -1).T
        return x + self._weights.tensor(f"{PATCHES}.bias") if vision.patches_bias else x

    def _attended(self, index: int, attention: Attention, q: F32, k: F32, v: F32) -> F32:
        if self._vision.has_rope:
            q, k = self._rotated(q, attention.rope), self._rotated(k, attention.rope)
        scale = 1 / np.sqrt(attention.head_dim) if attention.scale is None else attention.scale
        shared = attention.heads // attention.kv_heads
        k, v = k.repeat(shared, axis=0), v.repeat(shared, axis=0)
        scores = q @ k.transpose(0, 2, 1) * np.float32(scale)
        if self._vision.has_windows(index):
            window_of = np.empty(q.shape[1], np.int64)
            for number, (patches, mask) in enumerate(
                zip(self._inputs[WINDOWS], self._inputs[WINDOW_MASK], strict=True)
            ):
                window_of[patches[mask == 1]] = number
            scores = np.where(window_of[:, None] == window_of, scores, -np.inf)
        return (softmax(scores) @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)

    def _short_convolution(self, index: int, mixer: ShortConv, x: F32) -> F32:
        """Over the grid of patches, whose order is that of squares."""
        b, c, values = (self._linear(x, linear) for linear in (mixer.b, mixer.c, mixer.x))
        order, kernel, edge = self._inputs[PATCH_ORDER], mixer.kernel, mixer.kernel // 2
        rows, columns = (side // self._vision.patch_size for side in self._inputs["pixel_values"].shape[2:])
        grid = np.empty_like(values)
        grid[order] = b * values
        padded = np.pad(grid.reshape(rows, columns, -1), ((edge, edge), (edge, edge), (0, 0)))
        weights = self._weights.tensor(patch_convolution_name(index)).reshape(-1, kernel, kernel)
        convolved = np.zeros((rows, columns, values.shape[1]), np.float32)
        for down, right in np.ndindex(kernel, kernel):
            convolved += padded[down : down + rows, right : right + columns] * weights[:, down, right]
        return self._linear(c * convolved.reshape(values.shape)[order], mixer.o)

    def _rotated(self, x: F32, rope: int | None) -> F32:
        cos, sin = (self._inputs[name] for name in ROPE)
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _rows(self, x: F32) -> F32:
        """The features that the layers' output becomes, those of DeepStack aside."""
        merger = self._vision.merger
        return self._pooled(merger, x) if isinstance(merger, PatchPooler) else self._merged(merger, x)

    def _pooled(self, pooler: PatchPooler, x: F32) -> F32:
        square = self._vision.merge_size**2
        rows: F32 = x.reshape(-1, square, x.shape[1]).mean(axis=1) * np.float32(pooler.multiplier)
        if pooler.standardize:
            bias, scale = (self._weights.tensor(f"{POOLED}.{part}") for part in ("std_bias", "std_scale"))
            rows = (rows - bias) * scale
        return self._linear(self._norm(rows, pooler.norm), pooler.projector)

    def _merged(self, merger: PatchMerger, x: F32) -> F32:
        over_square = merger.norm.size == merger.square
        patches = x if over_square else self._norm(self._norm(x, merger.norm), merger.projector_norm)
        square = patches.reshape(-1, merger.square)
        square = self._norm(self._norm(square, merger.norm) if over_square else square, merger.square_norm)
        if merger.merging is not None:
            patches = self._vision.merge_size**2
            channels = square.reshape(len(square), patches, -1).transpose(0, 2, 1).reshape(square.shape)
            square = self._linear(channels, merger.merging)
        x = activated(self._norm(self._linear(square, merger.up), merger.up_norm), "gelu")
        if merger.gate is not None and merger.gated_up is not None:
            x = activated(self._linear(x, merger.gate), "silu") * self._linear(x, merger.gated_up)
        return self._linear(x, merger.down)
