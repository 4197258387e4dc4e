"""InternVL's image processor: an image in tiles whose grid is nearest to its proportions, and then all of it in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.images.settings import CLIP_MEAN, CLIP_STD, MOST_TILES, Pixels, Settings
from embedllm.images.tile_grid import closest_grid
from embedllm.package.architecture.vision import Vision

if TYPE_CHECKING:
    from PIL.Image import Image

    from embedllm.types import F32


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVLProcessor:
    """Tiles row by row; of more than one, all of the image follows in one of that size.

    Source: image_processing_got_ocr2.py and processing_internvl.py of transformers (5.24).
    """

    pixels: Pixels
    tile: int  # pixels; the side of a tile
    tile_tokens: int
    min_tiles: int
    max_tiles: int  # 1: an image is never split
    placeholder: str = "<IMG_CONTEXT>"
    start_token: str = "<img>"
    end_token: str = "</img>"

    def prompt_text(self, width: int, height: int) -> str:
        return f"{self.start_token}{self.placeholder * self.token_count(width, height)}{self.end_token}"

    def token_count(self, width: int, height: int) -> int:
        rows, columns = self._grid(width, height)
        return self.tile_tokens * (rows * columns + (rows * columns > 1))

    def grid(self, width: int, height: int) -> None:
        return None

    def pixel_values(self, image: Image) -> F32:
        import numpy as np

        (rows, columns), side = self._grid(*image.size), self.tile
        large = self.pixels.resized(image, columns * side, rows * side)
        boxes = [(column * side, row * side) for row in range(rows) for column in range(columns)]
        tiles = [large.crop((left, top, left + side, top + side)) for left, top in boxes]
        tiles += [self.pixels.resized(image, side, side)] if len(tiles) > 1 else []
        return np.stack([self.pixels.normalized(tile) for tile in tiles])

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles."""
        if self.max_tiles == 1:
            return 1, 1
        return closest_grid(width, height, tile=self.tile, least=self.min_tiles, most=self.max_tiles)


def open_internvl(settings: Settings, vision: Vision, named: Mapping[str, str]) -> InternVLProcessor:
    """The processor of these settings, whose tile the caller has checked. Raises PackageError for too many tiles.

    'crop_to_patches' is not read: transformers' processor of InternVL splits images whatever it is.
    """
    least, most = settings.count("min_patches", 1), settings.count("max_patches", 12)
    if least > most or most > MOST_TILES:
        raise PackageError(
            f"the image processor of '{settings.where}' asks for {least} tiles at least ('min_patches') and {most} at "
            f"most ('max_patches'); expected 1 to {MOST_TILES}. Copy preprocessor_config.json from the checkpoint "
            "again."
        )
    return InternVLProcessor(
        pixels=settings.pixels(resample=3, usual_mean=CLIP_MEAN, usual_std=CLIP_STD),
        tile=vision.image_size,
        tile_tokens=vision.tile_tokens,
        min_tiles=least,
        max_tiles=most,
        placeholder=named.get("context_image_token", "<IMG_CONTEXT>"),
        start_token=named.get("start_image_token", "<img>"),
        end_token=named.get("end_image_token", "</img>"),
    )
