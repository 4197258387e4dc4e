"""The image processor of Qwen's models: an image keeps its size, but for sides of whole squares of patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, sqrt

from embedllm.errors import PackageError
from embedllm.images.any_size import AnySizeProcessor, check_encoder, check_resizes
from embedllm.images.settings import CLIP_MEAN, CLIP_STD, Settings
from embedllm.package.architecture.vision import DynamicVision

ScaleUp = Callable[[int, int, int], tuple[int, int]]  # width, height and factor; the new width and height
_MOST_RATIO = 200  # of the longer side to the shorter one; transformers refuses more, too


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelRange:
    """Sides are rounded to whole squares, and scaled where the pixels are too few or too many.

    Source: smart_resize() of image_processing_qwen2_vl.py, and processing_qwen3_vl.py, of transformers (5.24).
    """

    min_pixels: int
    max_pixels: int
    times: int = 1  # that each pixel of an image counts in these
    scale_up: ScaleUp | None = None  # of images with a side of less than a square, before all else

    def grid(self, width: int, height: int, factor: int) -> tuple[int, int]:
        """Raises ValueError for an image that is too narrow."""
        if self.scale_up is not None and min(width, height) < factor:
            width, height = self.scale_up(width, height, factor)
        if max(width, height) > _MOST_RATIO * min(width, height):
            raise ValueError(
                f"an image has {width} x {height} pixels; the model takes those whose longer side is at most "
                f"{_MOST_RATIO} times the shorter one. Crop it."
            )
        sides = (height, width)
        rows, columns = (round(side / factor) for side in sides)
        pixels, own = self.times * rows * columns * factor**2, self.times * width * height
        if pixels > self.max_pixels:
            scale = sqrt(own / self.max_pixels)
            rows, columns = (max(1, floor(side / scale / factor)) for side in sides)
        elif pixels < self.min_pixels:
            scale = sqrt(self.min_pixels / own)
            rows, columns = (ceil(side * scale / factor) for side in sides)
        return rows, columns


def open_paddleocr_vl(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> AnySizeProcessor:
    """As open_dynamic_size(). Source: image_processing_paddleocr_vl.py of transformers (5.24)."""
    named = {"image_token": "<|IMAGE_PLACEHOLDER|>", **named}
    return open_dynamic_size(settings, vision, named, limits=(384 * 384, 1536 * 1536), scale_up=_side_by_side)


def open_glm46v(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> AnySizeProcessor:
    """GLM-OCR's, as open_dynamic_size(): its limits count pixels of all the times of a patch.

    Source: image_processing_glm46v.py of transformers (5.24).
    """
    named, limits = {"image_token": "<|image|>", **named}, (112 * 112, 28 * 28 * 15_000)
    times = vision.temporal_patch_size
    return open_dynamic_size(settings, vision, named, limits=limits, scale_up=_both_sides, times=times)


def _side_by_side(width: int, height: int, factor: int) -> tuple[int, int]:
    if height < factor:
        width, height = round(width * factor / height), factor
    if width < factor:
        width, height = factor, round(height * factor / width)
    return width, height


def _both_sides(width: int, height: int, factor: int) -> tuple[int, int]:
    scale = max(factor / height, factor / width)
    return int(width * scale), int(height * scale)


def open_dynamic_size(
    settings: Settings,
    vision: DynamicVision,
    named: Mapping[str, str],
    *,
    limits: tuple[int, int] = (56 * 56, 28 * 28 * 1280),
    scale_up: ScaleUp | None = None,
    times: int = 1,
) -> AnySizeProcessor:
    """The processor of these settings. Raises PackageError where they and the vision encoder disagree.

    limits: the fewest and the most pixels where the settings do not say it. scale_up, times: of PixelRange.
    """
    check_resizes(settings)
    check_encoder(
        settings,
        {
            "patch_size": vision.patch_size,
            "merge_size": vision.merge_size,
            "temporal_patch_size": vision.temporal_patch_size,
        },
    )
    size = settings.pixel_counts("size")
    smallest = settings.count("min_pixels", size.get("shortest_edge", limits[0]))
    largest = settings.count("max_pixels", size.get("longest_edge", limits[1]))
    if smallest > largest:
        raise PackageError(
            f"the image processor of '{settings.where}' asks for {smallest} pixels at least and {largest} at most; "
            "copy preprocessor_config.json from the checkpoint again."
        )
    return AnySizeProcessor(
        pixels=settings.pixels(resample=3, usual_mean=CLIP_MEAN, usual_std=CLIP_STD),
        factor=vision.factor,
        size_rule=PixelRange(min_pixels=smallest, max_pixels=largest, times=times, scale_up=scale_up),
        placeholder=named.get("image_token", "<|image_pad|>"),
    )
