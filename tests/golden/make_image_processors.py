"""Records pixel values of transformers' image processors, in levels of 255: needs torch and torchvision.

Made with transformers 5.23.0 (InternVL: 5.24.0), torch 2.13.0 and torchvision 0.28.0.

python -m tests.golden.make_image_processors
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PATH = Path(__file__).with_name("image_processors.json")
SIZES = ((1, 1), (3, 40), (20, 40), (41, 17), (32, 32), (33, 32), (100, 75))


@dataclass(frozen=True, slots=True)
class Case:
    """An image processor of a small model. settings: preprocessor_config.json. tile: pixels a side; 0: any."""

    processor: str
    settings: dict[str, Any]
    tile: int


_PIXELS = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_SMOLVLM = {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 32},
            "max_image_size": {"longest_edge": 16}, **_PIXELS}  # fmt: skip
_QWEN = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
         "min_pixels": 900, "max_pixels": 4000, "resample": 3, **_PIXELS}  # fmt: skip
_PIXTRAL = {"image_processor_type": "PixtralImageProcessor", "patch_size": 4, "spatial_merge_size": 2,
            "size": {"longest_edge": 64}, "resample": 3, **_PIXELS}  # fmt: skip
_LFM2_VL = {"image_processor_type": "Lfm2VlImageProcessor", "encoder_patch_size": 4, "downsample_factor": 2,
            "tile_size": 16, "min_image_tokens": 4, "max_image_tokens": 16, "max_tiles": 6, "resample": 2,
            **_PIXELS}  # fmt: skip
_INTERNVL = {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 16, "width": 16}, "max_patches": 6,
             "crop_to_patches": True, "resample": 3, **_PIXELS}  # fmt: skip
CASES = {
    "smolvlm": Case("SmolVLMProcessor", _SMOLVLM, 16),
    "smolvlm whole": Case("SmolVLMProcessor", {**_SMOLVLM, "do_image_splitting": False}, 16),
    "smolvlm bicubic": Case("SmolVLMProcessor", {**_SMOLVLM, "resample": 3}, 16),
    "internvl": Case("InternVLProcessor", _INTERNVL, 16),
    "internvl many": Case("InternVLProcessor", {**_INTERNVL, "min_patches": 3, "max_patches": 12}, 16),
    "internvl whole": Case("InternVLProcessor", {**_INTERNVL, "max_patches": 1}, 16),
    "gemma 3": Case(
        "Gemma3Processor",
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 24, "width": 24}, "resample": 2, **_PIXELS},
        24,
    ),
    "gemma 4": Case(
        "Gemma4Processor",
        {
            "image_processor_type": "Gemma4ImageProcessor",
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "max_soft_tokens": 70,
        },
        0,
    ),
    "qwen": Case("Qwen2_5_VLProcessor", _QWEN, 0),
    "qwen few pixels": Case("Qwen3VLProcessor", {**_QWEN, "min_pixels": 64, "max_pixels": 1000}, 0),
    "pixtral": Case("PixtralProcessor", _PIXTRAL, 0),
    "lfm2_vl": Case("Lfm2VlProcessor", _LFM2_VL, 0),
    "lfm2_vl tiles": Case("Lfm2VlProcessor", {**_LFM2_VL, "use_thumbnail": False, "max_pixels_tolerance": 0.5}, 0),
    "lfm2_vl whole": Case("Lfm2VlProcessor", {**_LFM2_VL, "do_image_splitting": False}, 0),
}


def noise(width: int, height: int) -> Image.Image:
    """Coarse noise with fine noise upon it, the same at every call."""
    rng = np.random.default_rng((width, height))
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.NEAREST
    )
    fine = rng.integers(-40, 41, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse).astype(int) + fine, 0, 255).astype(np.uint8))


def together(patches: np.ndarray, side: int, grid: Sequence[int]) -> np.ndarray:
    """The pixels [3, height, width] of patches, squares of 2 by 2 one behind the other, each patch twice in time."""
    _, rows, columns = grid
    apart = patches.reshape(rows // 2, columns // 2, 2, 2, 3, 2, side, side)
    assert np.array_equal(apart[:, :, :, :, :, 0], apart[:, :, :, :, :, 1])
    return apart[:, :, :, :, :, 0].transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * side, columns * side)


def apart(made: Mapping[str, Any], side: int) -> list[np.ndarray]:
    """Tiles [3, height, width] of several sizes, whose patches have red, green and blue of a pixel side by side."""
    tiles = zip(made["pixel_values"], made["spatial_shapes"], strict=True)
    return [
        patches[: rows * columns].reshape(rows, columns, side, side, 3).transpose(4, 0, 2, 1, 3)
        .reshape(3, rows * side, columns * side)
        for patches, (rows, columns) in tiles
    ]  # fmt: skip


def flat(values: np.ndarray | list[np.ndarray]) -> np.ndarray:
    """Tiles of several sizes one behind the other; an array of tiles of one size as it is."""
    return np.concatenate([tile.ravel() for tile in values]) if isinstance(values, list) else values


def by_rows(patches: np.ndarray, side: int, places: np.ndarray) -> np.ndarray:
    """The same of Gemma 4's patches [patches, side * side * 3], row by row, of 0 to 1. places: column, row, or -1."""
    columns, rows = places.max(axis=0) + 1
    apart = patches[: rows * columns].reshape(rows, columns, side, side, 3)
    return apart.transpose(4, 0, 2, 1, 3).reshape(3, rows * side, columns * side) * 2 - 1


def opened(case: Case) -> Callable[[Image.Image], np.ndarray]:
    """transformers' processor: pixel values [tiles, 3, height, width] of an image, or those of flat()."""
    import transformers

    settings = dict(case.settings)
    side = settings.get("patch_size", 0)
    if merge := settings.pop("spatial_merge_size", 0):  # PixtralProcessor tells its image processor of whole squares
        settings["patch_size"] = {"height": merge * side, "width": merge * side}
    processor = getattr(transformers, case.settings["image_processor_type"])(**settings)

    def pixel_values(image: Image.Image) -> np.ndarray:
        made = processor([image], return_tensors="np")
        if "spatial_shapes" in made:
            return flat(apart(made, case.settings["encoder_patch_size"]))
        values = np.asarray(made["pixel_values"])
        if "image_grid_thw" in made:
            values = together(values, side, made["image_grid_thw"][0])
        elif "image_position_ids" in made:
            values = by_rows(values[0], side, np.asarray(made["image_position_ids"])[0])
        return values.reshape(-1, *values.shape[-3:])

    return pixel_values


def record(case: Case) -> list[dict[str, object]]:
    pixel_values = opened(case)
    found: list[dict[str, object]] = []
    for size in SIZES:
        values = np.rint((pixel_values(noise(*size)) * 0.5 + 0.5) * 255).astype(np.uint8)
        packed = base64.b64encode(zlib.compress(values.tobytes(), 9)).decode()
        found.append({"size": size, "shape": values.shape, "levels": packed})
    return found


if __name__ == "__main__":
    PATH.write_text(json.dumps({name: record(case) for name, case in CASES.items()}, indent=1) + "\n")
