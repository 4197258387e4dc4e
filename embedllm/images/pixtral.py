"""The image processors of Pixtral and LightOnOCR: images keep their size up to a limit, but for whole squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, floor

from embedllm.errors import PackageError
from embedllm.images.any_size import AnySizeProcessor, check_resizes
from embedllm.images.settings import CLIP_MEAN, CLIP_STD, Settings
from embedllm.package.architecture.vision import DynamicVision


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundingBox:
    """Larger images are scaled down to fit in it; sides are rounded up to whole squares.

    Source: image_processing_pixtral.py and processing_pixtral.py of transformers (5.24).
    """

    width: int  # pixels
    height: int

    def grid(self, width: int, height: int, factor: int) -> tuple[int, int]:
        ratio = max(width / self.width, height / self.height, 1)
        # of very narrow images one pixel is left, where transformers leaves none and fails
        rows, columns = (ceil(max(floor(side / ratio), 1) / factor) for side in (height, width))
        return rows, columns


def open_pixtral(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> AnySizeProcessor:
    """The processor of these settings. Raises PackageError where they and the vision encoder disagree."""
    check_resizes(settings)
    patch, merge = vision.patch_size, settings.count("spatial_merge_size", vision.merge_size)
    patches = settings.sides("patch_size", {"height": patch, "width": patch})
    for name, actual, expected in (
        ("patch_size", sorted(set(patches.values())), [patch]),
        ("spatial_merge_size", merge, vision.merge_size),
    ):
        if actual != expected:
            raise PackageError(
                f"'{name}' is {settings.values.get(name)} in the image processor's settings of '{settings.where}'; its "
                f"vision encoder has {vision.patch_size} and squares of {vision.merge_size} patches a side. Copy "
                "preprocessor_config.json and processor_config.json from the same checkpoint again."
            )
    size = settings.sides("size", {"longest_edge": 1024})
    longest = size.get("longest_edge", 0)
    width, height = (longest or size.get(side, 0) for side in ("width", "height"))
    if not width or not height:
        raise PackageError(
            f"'size' is {size} in the image processor's settings of '{settings.where}'; expected a 'longest_edge', or "
            "'height' and 'width'."
        )
    return AnySizeProcessor(
        pixels=settings.pixels(resample=3, usual_mean=CLIP_MEAN, usual_std=CLIP_STD),
        factor=vision.factor,
        size_rule=BoundingBox(width=width, height=height),
        placeholder=named.get("image_token", "[IMG]"),
        break_token=named.get("image_break_token", "[IMG_BREAK]"),
        end_token=named.get("image_end_token", "[IMG_END]"),
    )


def open_lighton_ocr(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> AnySizeProcessor:
    """The processor of these settings, whose rows of features have no tokens between them. Raises PackageError.

    Where transformers rounds a side up to an odd number of patches, whose last one no feature has, sides here are of
    whole squares.
    """
    image_token = named.get("image_token", "<|image_pad|>")
    processor = open_pixtral(settings, vision, named)
    return replace(processor, placeholder=image_token, break_token="", end_token="")
