"""LFM2-VL's image processor: an image keeps its proportions within a number of tokens; larger ones become tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.images.any_size import check_encoder
from embedllm.images.settings import MOST_TILES, Pixels, Settings
from embedllm.images.tile_grid import closest_grid
from embedllm.package.architecture.vision import DynamicVision

if TYPE_CHECKING:
    from PIL.Image import Image

    from embedllm.types import F32


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2VlProcessor:
    """Sides are rounded to multiples of `factor`, and scaled where the tokens are too few or too many.

    An image that is larger than `largest` becomes equal tiles, row by row, and then all of it in one of that size.
    Source: image_processing_lfm2_vl.py and processing_lfm2_vl.py of transformers (5.24).
    """

    pixels: Pixels
    factor: int  # pixels
    min_tokens: int
    max_tokens: int
    tile: int  # pixels; the side of a tile
    min_tiles: int
    max_tiles: int  # 1: an image is never split
    largest: float  # pixels of an image that is not split
    has_thumbnail: bool = True  # behind the tiles
    is_marked: bool = True  # tokens tell where an image and its tiles begin
    placeholder: str = "<image>"
    start_token: str = "<|image_start|>"
    end_token: str = "<|image_end|>"
    thumbnail_token: str = "<|img_thumbnail|>"

    def prompt_text(self, width: int, height: int) -> str:
        rows, columns = self._tiles(width, height)
        whole = self.placeholder * self._whole_tokens(width, height)
        if rows * columns == 1:
            return f"{self.start_token}{whole}{self.end_token}" if self.is_marked else whole
        tokens = self.placeholder * self._tile_tokens
        places = [(row + 1, column + 1) for row in range(rows) for column in range(columns)]
        parts = [(f"<|img_row_{row}_col_{column}|>", tokens) for row, column in places]
        parts += [(self.thumbnail_token, whole)] if self.has_thumbnail else []
        if not self.is_marked:
            return "".join(part for _, part in parts)
        return "".join([self.start_token, *(mark + part for mark, part in parts), self.end_token])

    def token_count(self, width: int, height: int) -> int:
        rows, columns = self._tiles(width, height)
        whole = self._whole_tokens(width, height)
        if rows * columns == 1:
            return whole
        return rows * columns * self._tile_tokens + (whole if self.has_thumbnail else 0)

    def grid(self, width: int, height: int) -> None:
        return None

    def pixel_values(self, image: Image) -> list[F32]:
        rows, columns = self._tiles(*image.size)
        whole = self.pixels.resized(image, *self._size(*image.size))
        if rows * columns == 1:
            return [self.pixels.normalized(whole)]
        side = self.tile
        large = self.pixels.resized(image, columns * side, rows * side)
        tiles = [
            large.crop((left, top, left + side, top + side))
            for top in range(0, large.height, side)
            for left in range(0, large.width, side)
        ]
        tiles += [whole] if self.has_thumbnail else []
        return [self.pixels.normalized(tile) for tile in tiles]

    @property
    def _tile_tokens(self) -> int:
        return (self.tile // self.factor) ** 2

    def _whole_tokens(self, width: int, height: int) -> int:
        width, height = self._size(width, height)
        return (width // self.factor) * (height // self.factor)

    def _size(self, width: int, height: int) -> tuple[int, int]:
        """Of an image as one."""
        factor = self.factor
        wide, high = self._rounded(width), self._rounded(height)
        tokens = (wide // factor) * (high // factor)
        if tokens > self.max_tokens:
            scale = sqrt(width * height / (self.max_tokens * factor**2))
            wide, high = (max(factor, floor(side / scale / factor) * factor) for side in (width, height))
        elif tokens < self.min_tokens:
            scale = sqrt(self.min_tokens * factor**2 / (width * height))
            wide, high = (ceil(side * scale / factor) * factor for side in (width, height))
        return wide, high

    def _tiles(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles."""
        if self.max_tiles == 1 or self._rounded(width) * self._rounded(height) <= self.largest:
            return 1, 1
        return closest_grid(width, height, tile=self.tile, least=self.min_tiles, most=self.max_tiles)

    def _rounded(self, side: int) -> int:
        return max(self.factor, round(side / self.factor) * self.factor)


def open_lfm2_vl(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> Lfm2VlProcessor:
    """The processor of these settings. Raises PackageError where they and the vision encoder disagree."""
    check_encoder(settings, {"encoder_patch_size": vision.patch_size, "downsample_factor": vision.merge_size})
    factor, tile = vision.factor, settings.count("tile_size", 512)
    splits = settings.flag("do_image_splitting", True)
    tiles = [settings.count("min_tiles", 2), settings.count("max_tiles", 10)] if splits else [1, 1]
    tokens = [settings.count("min_image_tokens", 64), settings.count("max_image_tokens", 256)]
    for name, (least, most) in (("tiles", tiles), ("tokens of an image", tokens)):
        if least > most:
            raise PackageError(
                f"the image processor of '{settings.where}' asks for {least} {name} at least and {most} at most; copy "
                "preprocessor_config.json from the checkpoint again."
            )
    if tiles[1] > MOST_TILES:
        raise PackageError(
            f"'max_tiles' is {tiles[1]} in the image processor's settings of '{settings.where}'; expected {MOST_TILES} "
            "at most."
        )
    if tile % factor:
        raise PackageError(
            f"'tile_size' is {tile} in the image processor's settings of '{settings.where}'; expected a multiple of "
            f"{factor} pixels, which become a token."
        )
    return Lfm2VlProcessor(
        pixels=settings.pixels(resample=2, usual_mean=0.5, usual_std=0.5),
        factor=factor,
        min_tokens=tokens[0],
        max_tokens=tokens[1],
        tile=tile,
        min_tiles=tiles[0],
        max_tiles=tiles[1],
        largest=tokens[1] * factor**2 * settings.number("max_pixels_tolerance", 2.0),
        has_thumbnail=settings.flag("use_thumbnail", True),
        is_marked=settings.flag("use_image_special_tokens", True),
        placeholder=named.get("image_token", "<image>"),
        start_token=named.get("image_start_token", "<|image_start|>"),
        end_token=named.get("image_end_token", "<|image_end|>"),
        thumbnail_token=named.get("image_thumbnail_token", "<|img_thumbnail|>"),
    )
