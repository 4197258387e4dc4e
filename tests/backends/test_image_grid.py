"""Learned positions resized for an image of another size, with antialias: values by hand, and what all sizes have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embedllm.backends.image_grid import encoder_inputs
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import PATCH_ORDER, POSITIONS, ROPE
from tests.support.dynamic_vision import described

SIDE = 5  # learned positions, down and across
PATCH = 4  # pixels


def dense(rows: int, columns: int) -> np.ndarray:
    """How much of each learned position those of patches have, row by row, [rows * columns, SIDE * SIDE]."""
    vision = described("lfm2_vl").vision
    assert isinstance(vision, DynamicVision)
    pixels = np.zeros((1, 3, rows * PATCH, columns * PATCH), np.float32)
    inputs = encoder_inputs(replace(vision, merge_size=1), pixels)
    assert not set(ROPE) & set(inputs)
    assert inputs[PATCH_ORDER].tolist() == list(range(rows * columns))
    places, weights = (inputs[name] for name in POSITIONS)
    found = np.zeros((rows * columns, SIDE * SIDE), np.float32)
    for at, weight in zip(places, weights[..., 0], strict=True):
        np.add.at(found, (np.arange(rows * columns), at), weight)
    return found


def test_a_grid_of_the_same_size_has_the_learned_positions() -> None:
    assert np.array_equal(dense(SIDE, SIDE), np.eye(SIDE * SIDE))


def test_fewer_are_means_with_weights_of_a_wider_triangle() -> None:
    """Three of five: centres at 5/6, 5/2 and 25/6, and a triangle whose sides are 5/3 long."""
    by_row = dense(3, SIDE)[2::SIDE].reshape(3, SIDE, SIDE)[:, :, 2]  # of the third column
    expected = [[4 / 7, 3 / 7, 0, 0, 0], [0, 2 / 9, 5 / 9, 2 / 9, 0], [0, 0, 0, 3 / 7, 4 / 7]]
    assert np.allclose(by_row, expected, atol=1e-6)


def test_more_lie_between_two_and_the_outer_ones_repeat() -> None:
    """Ten of five: centres at 1/4, 3/4, 5/4 ..., where the learned ones are at 1/2, 3/2 ..."""
    across = dense(SIDE, 10)[:10].reshape(10, SIDE, SIDE)[:, 0]  # of the first row
    assert np.allclose(across[:3], [[1, 0, 0, 0, 0], [3 / 4, 1 / 4, 0, 0, 0], [1 / 4, 3 / 4, 0, 0, 0]], atol=1e-6)
    assert np.allclose(across[9], [0, 0, 0, 0, 1], atol=1e-6)


@pytest.mark.parametrize("size", [(1, 1), (2, 31), (17, 3), (6, 8)], ids=str)
def test_the_weights_of_a_patch_sum_to_one_at_any_size(size: tuple[int, int]) -> None:
    found = dense(*size)
    assert found.min() >= 0
    assert np.allclose(found.sum(axis=1), 1, atol=1e-6)
    assert np.allclose(found, found[::-1, ::-1], atol=1e-6)  # the grid upside down
