"""The image processor of Qwen's models: an image keeps its size, but for sides of whole squares of patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.images.settings import CLIP_MEAN, CLIP_STD, Pixels, Settings
from embedllm.package.architecture import DynamicVision

if TYPE_CHECKING:
    from PIL.Image import Image

    from embedllm.types import F32

_MOST_RATIO = 200  # of the longer side to the shorter one; transformers refuses more, too


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSizeProcessor:
    """Sides are rounded to multiples of `factor`, and scaled where the pixels are too few or too many.

    Source: smart_resize() of image_processing_qwen2_vl.py, and processing_qwen3_vl.py, of transformers (5.23).
    """

    pixels: Pixels
    factor: int  # pixels
    min_pixels: int
    max_pixels: int
    placeholder: str = "<|image_pad|>"

    def prompt_text(self, width: int, height: int) -> str:
        return self.placeholder * self.token_count(width, height)

    def token_count(self, width: int, height: int) -> int:
        rows, columns = self.grid(width, height)
        return rows * columns

    def grid(self, width: int, height: int) -> tuple[int, int]:
        width, height = self._size(width, height)
        return height // self.factor, width // self.factor

    def pixel_values(self, image: Image) -> F32:
        return self.pixels.normalized(self.pixels.resized(image, *self._size(*image.size)))[None]

    def _size(self, width: int, height: int) -> tuple[int, int]:
        """Raises ValueError for an image that is too narrow."""
        if max(width, height) > _MOST_RATIO * min(width, height):
            raise ValueError(
                f"an image has {width} x {height} pixels; the model takes those whose longer side is at most "
                f"{_MOST_RATIO} times the shorter one. Crop it."
            )
        sides, factor = (width, height), self.factor
        found = [round(side / factor) * factor for side in sides]
        if found[0] * found[1] > self.max_pixels:
            scale = sqrt(width * height / self.max_pixels)
            found = [max(factor, floor(side / scale / factor) * factor) for side in sides]
        elif found[0] * found[1] < self.min_pixels:
            scale = sqrt(self.min_pixels / (width * height))
            found = [ceil(side * scale / factor) * factor for side in sides]
        return found[0], found[1]


def open_dynamic_size(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> DynamicSizeProcessor:
    """The processor of these settings. Raises PackageError where they and the vision encoder disagree."""
    if not settings.flag("do_resize", True):
        raise PackageError(f"'{settings.where}' has do_resize false; the sides of images have to be of whole patches.")
    for name, expected in (
        ("patch_size", vision.patch_size),
        ("merge_size", vision.merge_size),
        ("temporal_patch_size", vision.temporal_patch_size),
    ):
        if (found := settings.count(name, expected)) != expected:
            raise PackageError(
                f"'{name}' is {found} in the image processor's settings of '{settings.where}', and {expected} in its "
                "vision encoder. Copy preprocessor_config.json from the same checkpoint again."
            )
    size = settings.pixel_counts("size")
    smallest = settings.count("min_pixels", size.get("shortest_edge", 56 * 56))
    largest = settings.count("max_pixels", size.get("longest_edge", 28 * 28 * 1280))
    if smallest > largest:
        raise PackageError(
            f"the image processor of '{settings.where}' asks for {smallest} pixels at least and {largest} at most; "
            "copy preprocessor_config.json from the checkpoint again."
        )
    return DynamicSizeProcessor(
        pixels=settings.pixels(resample=3, usual_mean=CLIP_MEAN, usual_std=CLIP_STD),
        factor=vision.factor,
        min_pixels=smallest,
        max_pixels=largest,
        placeholder=named.get("image_token", "<|image_pad|>"),
    )
