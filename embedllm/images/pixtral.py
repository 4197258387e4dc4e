"""Pixtral's image processor: an image keeps its size up to a limit, but for sides of whole squares of patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.images.settings import CLIP_MEAN, CLIP_STD, Pixels, Settings
from embedllm.package.architecture import DynamicVision

if TYPE_CHECKING:
    from PIL.Image import Image

    from embedllm.types import F32


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralProcessor:
    """Larger images are scaled down; sides are rounded up to multiples of `factor`. A token ends each row.

    Source: image_processing_pixtral.py and processing_pixtral.py of transformers (5.23).
    """

    pixels: Pixels
    factor: int  # pixels
    largest: tuple[int, int]  # width and height, in pixels
    placeholder: str = "[IMG]"
    break_token: str = "[IMG_BREAK]"
    end_token: str = "[IMG_END]"

    def prompt_text(self, width: int, height: int) -> str:
        rows, columns = self.grid(width, height)
        return self.break_token.join([self.placeholder * columns] * rows) + self.end_token

    def token_count(self, width: int, height: int) -> int:
        rows, columns = self.grid(width, height)
        return rows * columns

    def grid(self, width: int, height: int) -> tuple[int, int]:
        width, height = self._size(width, height)
        return height // self.factor, width // self.factor

    def pixel_values(self, image: Image) -> F32:
        return self.pixels.normalized(self.pixels.resized(image, *self._size(*image.size)))[None]

    def _size(self, width: int, height: int) -> tuple[int, int]:
        ratio = max(width / self.largest[0], height / self.largest[1], 1)
        # of very narrow images one pixel is left, where transformers leaves none and fails
        wide, high = (ceil(max(floor(side / ratio), 1) / self.factor) * self.factor for side in (width, height))
        return wide, high


def open_pixtral(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> PixtralProcessor:
    """The processor of these settings. Raises PackageError where they and the vision encoder disagree."""
    if not settings.flag("do_resize", True):
        raise PackageError(f"'{settings.where}' has do_resize false; the sides of images have to be of whole patches.")
    patch, merge = vision.patch_size, settings.count("spatial_merge_size", vision.merge_size)
    patches = settings.sides("patch_size", {"height": patch, "width": patch})
    for name, found, expected in (
        ("patch_size", sorted(set(patches.values())), [patch]),
        ("spatial_merge_size", merge, vision.merge_size),
    ):
        if found != expected:
            raise PackageError(
                f"'{name}' is {settings.values.get(name)} in the image processor's settings of '{settings.where}'; its "
                f"vision encoder has {vision.patch_size} and squares of {vision.merge_size} patches a side. Copy "
                "preprocessor_config.json and processor_config.json from the same checkpoint again."
            )
    size = settings.sides("size", {"longest_edge": 1024})
    longest = size.get("longest_edge", 0)
    largest = (longest, longest) if longest else (size.get("width", 0), size.get("height", 0))
    if not all(largest):
        raise PackageError(
            f"'size' is {size} in the image processor's settings of '{settings.where}'; expected a 'longest_edge', or "
            "'height' and 'width'."
        )
    return PixtralProcessor(
        pixels=settings.pixels(resample=3, usual_mean=CLIP_MEAN, usual_std=CLIP_STD),
        factor=vision.factor,
        largest=largest,
        placeholder=named.get("image_token", "[IMG]"),
        break_token=named.get("image_break_token", "[IMG_BREAK]"),
        end_token=named.get("image_end_token", "[IMG_END]"),
    )
