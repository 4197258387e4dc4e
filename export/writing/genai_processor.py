"""The steps by which onnxruntime-genai makes pixel values of an image, as close to ours as its operators are.

Source: image_transforms.hpp, image_transforms_qwen2_5.hpp and image_transforms_pixtral.hpp of onnxruntime-extensions
(0.15), which onnxruntime-genai 0.18.0 has inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.writing.genai_kinds import GenaiKind
from embedllm.images.any_size import AnySizeProcessor
from embedllm.images.dynamic_size import PixelRange
from embedllm.images.pixtral import BoundingBox
from embedllm.images.processors import FixedSizeProcessor, open_processor
from embedllm.package.architecture.vision import DynamicVision, Vision
from embedllm.package.graph_variants import GENAI_VISION_OF_PATCHES, GENAI_VISION_OF_PIXELS

_KERNELS = {0: "NEAREST", 1: "LANCZOS", 2: "LINEAR", 3: "CUBIC"}  # by Pillow's number
_MOST = 255  # of a channel: rescaled to 1 first, since it normalizes values from 0 to 1


def processor_config(folder: Path, vision: Vision | DynamicVision, kind: GenaiKind) -> dict[str, object]:
    """The configuration of the image processor, from a folder's settings.

    Raises PackageError for settings that cannot be read, ExportError where it has no operator for them.
    """
    processor = open_processor(folder, vision, {})
    if isinstance(processor, FixedSizeProcessor):
        size: dict[str, object] = {"height": processor.tile, "width": processor.tile, "keep_aspect_ratio": 0}
    else:
        assert isinstance(processor, AnySizeProcessor)  # of all other kinds
        assert isinstance(vision, DynamicVision)
        size = {**_pixel_range(processor, folder), "smart_resize": 1, "keep_aspect_ratio": 0}
        size |= {"patch_size": vision.patch_size, "merge_size": vision.merge_size}
    pixels = processor.pixels
    if pixels.resample not in _KERNELS:
        raise ExportError(
            f"'{folder.name}' resizes images by Pillow's kernel {pixels.resample}; onnxruntime-genai has "
            f"{', '.join(map(str, _KERNELS))}. Export without --genai-images."
        )
    steps = [
        _step("DecodeImage", {"color_space": "RGB"}),
        _step("Resize", {**size, "interpolation": _KERNELS[pixels.resample]}),
        _step("Rescale", {"rescale_factor": 1 / _MOST}),
        _step("Normalize", {"mean": [one / _MOST for one in pixels.mean], "std": [one / _MOST for one in pixels.std]}),
    ]
    if kind.vision == GENAI_VISION_OF_PATCHES:
        assert isinstance(vision, DynamicVision)
        sizes = {"patch_size": vision.patch_size, "merge_size": vision.merge_size}
        steps.append(_step("PatchImage", {**sizes, "temporal_patch_size": vision.temporal_patch_size}))
    else:
        steps.append(_step("Permute3D", {"dims": [2, 0, 1]}))
    if kind.vision == GENAI_VISION_OF_PIXELS:
        steps.append(_step("PixtralImageSizes"))
    return {"processor": {"name": kind.name, "transforms": steps}}


def _pixel_range(processor: AnySizeProcessor, folder: Path) -> dict[str, int]:
    """A box has as many pixels as an image may have there, whose sides may then exceed those of the box."""
    rule = processor.size_rule
    if isinstance(rule, PixelRange):
        return {"min_pixels": rule.min_pixels, "max_pixels": rule.max_pixels}
    if isinstance(rule, BoundingBox):
        return {"min_pixels": processor.factor**2, "max_pixels": rule.width * rule.height}
    raise ExportError(f"'{folder.name}' has a rule for the size of images that onnxruntime-genai has no operator for.")


def _step(kind: str, attributes: Mapping[str, object] | None = None) -> dict[str, object]:
    return {"operation": {"name": kind, "type": kind, **({"attrs": attributes} if attributes else {})}}
