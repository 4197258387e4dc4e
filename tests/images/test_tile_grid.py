"""Grids of tiles against hand-made ones, and those of transformers for any size."""

from __future__ import annotations

from random import Random

import pytest

from embedllm.images.tile_grid import closest_grid


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((100, 100), (1, 1)),
        ((142, 142), (2, 2)),  # 20,164 pixels are more than half of 4 tiles
        ((141, 141), (1, 1)),  # 19,881 are not
        ((1000, 1000), (3, 3)),
        ((300, 100), (1, 3)),
        ((130, 250), (2, 1)),  # nearer to 1 by 2 than to 3 by 5, and too small for 2 by 4
        ((1, 10_000), (12, 1)),
        ((10_000, 1), (1, 12)),
    ],
)
def test_a_grid_has_the_proportions_of_the_image(size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert closest_grid(*size, tile=100, least=1, most=12) == grid


@pytest.mark.peer
@pytest.mark.parametrize(("least", "most"), [(1, 12), (1, 6), (2, 10), (3, 3), (4, 4), (12, 12), (1, 40)])
def test_grids_are_those_of_transformers(least: int, most: int) -> None:
    pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.models.got_ocr2.image_processing_pil_got_ocr2")
    random = Random(least * 100 + most)
    sizes = [(random.randint(1, longest), random.randint(1, longest)) for longest in (9, 60, 3000) for _ in range(500)]
    sizes += [(side, 5 * side // 2) for side in range(2, 60, 2)]  # as near to 1 by 4 as to 2 by 2
    for width, height in sizes:
        columns, rows = theirs.get_optimal_tiled_canvas((height, width), (16, 16), least, most)
        assert closest_grid(width, height, tile=16, least=least, most=most) == (rows, columns)
