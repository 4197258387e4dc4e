"""In how many tiles an image is cut, where the grid's proportions are to be those of the image."""

from __future__ import annotations


def closest_grid(width: int, height: int, *, tile: int, least: int, most: int) -> tuple[int, int]:
    """Rows and columns of `least` to `most` tiles, whose proportions are those of the image as nearly as can be.

    tile: pixels; the side of a tile. Of equally near grids it is the largest that the image fills by half.
    Source: get_optimal_tiled_canvas() of image_processing_got_ocr2.py of transformers (5.24).
    """
    best, smallest = (1, 1), float("inf")
    for count in range(least, most + 1):
        is_filled = width * height > 0.5 * tile**2 * count
        for columns in range(1, count + 1):
            rows, left = divmod(count, columns)
            if left:
                continue
            difference = abs(width / height - columns / rows)
            if difference < smallest or (difference == smallest and is_filled):
                best, smallest = (rows, columns), difference
    return best
