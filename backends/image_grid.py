"""What vision encoders are given beside pixels: of images of any size the order of patches, positions and windows.

All by the size of the image; the names are those of the graphs' inputs (export/onnx/dynamic_vision.py).
Source: vision_utils.py of transformers (5.24).
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.images import check_tile
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import (
    PATCH_ORDER,
    POSITIONS,
    ROPE,
    WINDOW_MASK,
    WINDOW_PLACES,
    WINDOWS,
)
from embedllm.package.rope import frequencies_2d

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from embedllm.package.architecture.vision import Vision
    from embedllm.package.architecture.weights import Linear
    from embedllm.types import F32


def encoder_inputs(vision: Vision | DynamicVision, pixel_values: F32) -> dict[str, np.ndarray]:
    """What a graph is given for the pixels of a tile, or of an image of any size, [1, 3, height, width].

    Raises ValueError for another shape.
    """
    if not isinstance(vision, DynamicVision):
        return {"pixel_values": check_tile(vision, pixel_values)}
    shape, factor = pixel_values.shape, vision.factor
    if len(shape) != 4 or shape[:2] != (1, 3) or not min(shape[2:]) or shape[2] % factor or shape[3] % factor:
        raise ValueError(
            f"the pixels of an image are {list(shape)}; expected [1, 3, height, width], of multiples of {factor}."
        )
    if vision.positions_by_axis and max(shape[2:]) > vision.positions_side * vision.patch_size:
        raise ValueError(
            f"the pixels of an image are {list(shape)}; its model has positions of {vision.positions_side} patches a "
            f"side, {vision.positions_side * vision.patch_size} pixels."
        )
    pixels = np.ascontiguousarray(pixel_values, np.float32)
    return {"pixel_values": pixels, **_grid_inputs(vision, shape[2], shape[3])}


def _grid_inputs(vision: DynamicVision, height: int, width: int) -> dict[str, np.ndarray]:
    """The inputs beside the pixels, for an image of that size."""
    rows, columns, merge = height // vision.patch_size, width // vision.patch_size, vision.merge_size
    places = np.arange(rows * columns).reshape(rows // merge, merge, columns // merge, merge)
    order = places.transpose(0, 2, 1, 3).reshape(-1)
    row, column = np.divmod(order, columns)
    inputs: dict[str, np.ndarray] = {PATCH_ORDER: order}
    if vision.has_rope:
        inputs |= zip(ROPE, _rotations(vision, row, column), strict=True)
    if vision.positions is not None and vision.positions_by_axis:
        inputs |= zip(POSITIONS, _axes(vision, row, column), strict=True)
    elif vision.positions is not None:
        interpolate = _antialiased if vision.antialias else _on_edges if vision.positions_on_edges else _corners
        inputs |= zip(POSITIONS, interpolate(vision.positions, (row, rows), (column, columns)), strict=True)
    if vision.window:
        inputs |= _windows(vision, rows // merge, columns // merge)
    return inputs


def _rotations(vision: DynamicVision, row: NDArray[np.int64], column: NDArray[np.int64]) -> tuple[F32, F32]:
    """2-D RoPE: half of the pairs by the row, half by the column, in the order of the model."""
    axes = (column, row) if vision.rope_column_first else (row, column)
    parts = zip(axes, frequencies_2d(vision), strict=True)
    angles = np.concatenate([at.astype(np.float32)[:, None] * frequencies for at, frequencies in parts], axis=1)
    return np.cos(angles), np.sin(angles)


def _axes(vision: DynamicVision, row: NDArray[np.int64], column: NDArray[np.int64]) -> tuple[NDArray[np.int64], F32]:
    """The learned positions of the column and of the row of each patch, and their weights, which are 1."""
    places = np.stack([column, vision.positions_side + row])
    return places, np.ones((*places.shape, 1), np.float32)


def _corners(
    positions: Linear, rows: tuple[NDArray[np.int64], int], columns: tuple[NDArray[np.int64], int]
) -> tuple[NDArray[np.int64], F32]:
    """The four learned positions around each patch, and their weights: the grids lie corner on corner.

    rows, columns: of the patches, and how many there are.
    """
    side = isqrt(positions.rows)
    exact = [
        at.astype(np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1)) for at, count in (rows, columns)
    ]
    return _products(_neighbours(exact[0], side), _neighbours(exact[1], side), side)


def _on_edges(
    positions: Linear, rows: tuple[NDArray[np.int64], int], columns: tuple[NDArray[np.int64], int]
) -> tuple[NDArray[np.int64], F32]:
    """As _corners(), of grids that lie edges on edges: interpolate() of torch (2.13) without align_corners."""
    side = isqrt(positions.rows)
    exact = [
        np.clip((at.astype(np.float32) + np.float32(0.5)) * np.float32(side / count) - np.float32(0.5), 0, side - 1)
        for at, count in (rows, columns)
    ]
    return _products(_neighbours(exact[0], side), _neighbours(exact[1], side), side)


def _neighbours(exact: F32, side: int) -> list[tuple[NDArray[np.int64], F32]]:
    """The places of `side` on both sides of each exact one, and their weights."""
    first = np.floor(exact).astype(np.int64)
    share = (exact - first).astype(np.float32)
    return [(first, 1 - share), (np.minimum(first + 1, side - 1), share)]


def _antialiased(
    positions: Linear, rows: tuple[NDArray[np.int64], int], columns: tuple[NDArray[np.int64], int]
) -> tuple[NDArray[np.int64], F32]:
    """The learned positions that each patch's is made of, and their weights, as _corners() has them.

    Source: interpolate() of torch (2.13), mode "bilinear" with antialias.
    """
    side = isqrt(positions.rows)
    both = [[(place[at], weight[at]) for place, weight in _taps(side, count)] for at, count in (rows, columns)]
    return _products(both[0], both[1], side)


def _taps(side: int, count: int) -> list[tuple[NDArray[np.int64], F32]]:
    """What each of `count` values resized from `side` is made of: places [count], weights [count]; 0 where it is less.

    A triangle, as wide as two steps of the coarser grid.
    """
    scale = side / count
    reach = max(scale, 1.0)
    centres = scale * (np.arange(count) + 0.5)
    first = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    stop = np.minimum((centres + reach + 0.5).astype(np.int64), side)
    places = first + np.arange((stop - first).max())[:, None]
    weights = np.maximum(1 - np.abs((places - centres + 0.5) / reach), 0) * (places < stop)
    weights = (weights / weights.sum(axis=0)).astype(np.float32)
    return list(zip(np.minimum(places, side - 1), weights, strict=True))


def _products(
    rows: Sequence[tuple[NDArray[np.int64], F32]], columns: Sequence[tuple[NDArray[np.int64], F32]], side: int
) -> tuple[NDArray[np.int64], F32]:
    """Places in a grid of `side` columns, row by row, of pairs of a row and a column, and their weights."""
    pairs = [(row, column) for row in rows for column in columns]
    places = np.stack([row[0] * side + column[0] for row, column in pairs])
    return places, np.stack([row[1] * column[1] for row, column in pairs])[..., None]


def _windows(vision: DynamicVision, rows: int, columns: int) -> dict[str, np.ndarray]:
    """rows, columns: of squares."""
    side, square = vision.window, vision.merge_size**2
    squares = np.arange(rows * columns).reshape(rows, columns)
    parts = [squares[top : top + side, left : left + side].reshape(-1)
             for top in range(0, rows, side) for left in range(0, columns, side)]  # fmt: skip
    patches = [(part[:, None] * square + np.arange(square)).reshape(-1) for part in parts]
    longest = max(map(len, patches))
    windows, mask = (np.zeros((len(patches), longest), kind) for kind in (np.int64, np.int32))
    places = np.empty(rows * columns * square, np.int64)
    for number, part in enumerate(patches):
        windows[number, : len(part)] = part
        mask[number, : len(part)] = 1
        places[part] = number * longest + np.arange(len(part))
    return {WINDOWS: windows, WINDOW_MASK: mask, WINDOW_PLACES: places}
