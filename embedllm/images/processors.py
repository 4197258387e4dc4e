"""Image processors: how an image of any size becomes the tiles that a vision encoder reads, and the text of a prompt.

A row of a table below makes each from the folder's settings. Images of any size have one processor (any_size.py),
whose size rules are in dynamic_size.py, pixtral.py and aspect_ratio.py; lfm2_vl.py is LFM2-VL's, internvl.py is
InternVL's. The results equal those of the processors of the same names in transformers 5.24
(tests/images/test_processors.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from embedllm.errors import PackageError
from embedllm.images.aspect_ratio import open_aspect_ratio, open_unified
from embedllm.images.dynamic_size import open_dynamic_size, open_glm46v, open_paddleocr_vl
from embedllm.images.internvl import InternVLProcessor, open_internvl
from embedllm.images.lfm2_vl import open_lfm2_vl
from embedllm.images.pixtral import open_lighton_ocr, open_pixtral
from embedllm.images.settings import Pixels, Settings, read_settings
from embedllm.package.architecture.vision import DynamicVision, Vision

if TYPE_CHECKING:
    from PIL.Image import Image

    from embedllm.types import F32

_MOST_SIDE = 4096  # pixels, after the first resize; transformers' MAX_IMAGE_SIZE


class Processor(Protocol):
    """The image processor of a model."""

    @property
    def placeholder(self) -> str:
        """What the chat template writes for an image."""
        ...

    def prompt_text(self, width: int, height: int) -> str:
        """What takes its place in the prompt, for an image of this size: a token for each row of features."""
        ...

    def token_count(self, width: int, height: int) -> int:
        """How many rows of features an image of this size has."""
        ...

    def grid(self, width: int, height: int) -> tuple[int, int] | None:
        """Rows and columns of those rows of features; None for tiles, whose features have no one grid."""
        ...

    def pixel_values(self, image: Image) -> F32 | list[F32]:
        """[tiles, 3, height, width] of an image in RGB; a list where tiles differ in their sizes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TilingProcessor:
    """Idefics3 and SmolVLM: the image in tiles, row by row, and then all of it in one tile.

    Source: image_processing_idefics3.py and processing_idefics3.py of transformers.
    """

    pixels: Pixels
    longest_edge: int  # after the first resize
    tile: int  # the side of a tile
    splits: bool
    tile_tokens: int
    placeholder: str = "<image>"
    fake_token: str = "<fake_token_around_image>"
    global_token: str = "<global-img>"

    def prompt_text(self, width: int, height: int) -> str:
        rows, columns = self._grid(width, height)
        tokens = self.placeholder * self.tile_tokens
        lines = [
            "".join(f"{self.fake_token}<row_{row + 1}_col_{column + 1}>{tokens}" for column in range(columns)) + "\n"
            for row in range(rows)
        ]
        whole = f"{self.fake_token}{self.global_token}{tokens}{self.fake_token}"
        return "".join(lines) + ("\n" if rows else "") + whole

    def token_count(self, width: int, height: int) -> int:
        rows, columns = self._grid(width, height)
        return (rows * columns + 1) * self.tile_tokens

    def grid(self, width: int, height: int) -> None:
        return None

    def pixel_values(self, image: Image) -> F32:
        import numpy as np

        image = self.pixels.resized(image, *self._first_size(*image.size))
        if self.splits:
            image = self.pixels.resized(image, *self._tiled_size(*image.size))
        boxes = [
            (left, top, left + self.tile, top + self.tile)
            for top in range(0, image.height, self.tile)
            for left in range(0, image.width, self.tile)
        ]
        tiles = [image.crop(box) for box in boxes] if self.splits and len(boxes) > 1 else []
        tiles.append(self.pixels.resized(image, self.tile, self.tile))
        return np.stack([self.pixels.normalized(tile) for tile in tiles])

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; 0 and 0 for an image that is one tile."""
        width, height = self._tiled_size(*self._first_size(width, height))
        rows, columns = height // self.tile, width // self.tile
        return (rows, columns) if self.splits and rows * columns > 1 else (0, 0)

    def _first_size(self, width: int, height: int) -> tuple[int, int]:
        """Whose longest side is `longest_edge`; the other one is made even."""
        longest, ratio = self.longest_edge, width / height
        if width >= height:
            width, height = longest, int(longest / ratio)
            height += height % 2
        else:
            width, height = int(longest * ratio), longest
            width += width % 2
        width, height = max(width, 1), max(height, 1)
        ratio = width / height
        if width >= height and width > _MOST_SIDE:
            width, height = _MOST_SIDE, int(_MOST_SIDE / ratio)
        elif height > width and height > _MOST_SIDE:
            width, height = int(_MOST_SIDE * ratio), _MOST_SIDE
        return max(width, 1), max(height, 1)

    def _tiled_size(self, width: int, height: int) -> tuple[int, int]:
        """Whose sides are multiples of a tile's."""
        ratio = width / height
        if width >= height:
            width = self._up(width)
            return width, max(self._up(int(width / ratio)), self.tile)
        height = self._up(height)
        return max(self._up(int(height * ratio)), self.tile), height

    def _up(self, side: int) -> int:
        return ceil(side / self.tile) * self.tile


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeProcessor:
    """SigLIP as Gemma 3 has it: each image is one square, whatever its sides. Without pan and scan.

    Source: image_processing_gemma3.py and processing_gemma3.py of transformers.
    """

    pixels: Pixels
    tile: int
    tile_tokens: int
    placeholder: str = "<start_of_image>"
    image_token: str = "<image_soft_token>"
    end_token: str = "<end_of_image>"

    def prompt_text(self, width: int, height: int) -> str:
        return f"\n\n{self.placeholder}{self.image_token * self.tile_tokens}{self.end_token}\n\n"

    def token_count(self, width: int, height: int) -> int:
        return self.tile_tokens

    def grid(self, width: int, height: int) -> None:
        return None

    def pixel_values(self, image: Image) -> F32:
        return self.pixels.normalized(self.pixels.resized(image, self.tile, self.tile))[None]


def _tiling(settings: Settings, vision: Vision, named: Mapping[str, str]) -> TilingProcessor:
    tile = settings.sides("max_image_size", {"longest_edge": 364}).get("longest_edge", 0)
    longest = settings.sides("size", {"longest_edge": 4 * 364}).get("longest_edge", 0)
    if not longest or not settings.flag("do_resize", True):
        raise PackageError(
            f"'{settings.where}' has an image processor of size {settings.values.get('size')!r} and do_resize "
            f"{settings.values.get('do_resize')!r}; expected a 'longest_edge', which bounds the number of tiles."
        )
    _check_tile(settings, tile, vision)
    _check_tokens(settings, "image_seq_len", vision)
    return TilingProcessor(
        pixels=settings.pixels(resample=1, usual_mean=0.5, usual_std=0.5),
        longest_edge=longest,
        tile=tile,
        splits=settings.flag("do_image_splitting", True),
        tile_tokens=vision.tile_tokens,
        placeholder=named.get("image_token", "<image>"),
        fake_token=named.get("fake_image_token", "<fake_token_around_image>"),
        global_token=named.get("global_image_token", "<global-img>"),
    )


def _square(settings: Settings, usual: int) -> int:
    """The side of the square that 'size' is."""
    size = settings.sides("size", {"height": usual, "width": usual})
    if size.get("height", 0) != size.get("width", 1) or not settings.flag("do_resize", True):
        raise PackageError(f"'{settings.where}' has an image processor of size {size}; expected a square to resize to.")
    return size["height"]


def _internvl(settings: Settings, vision: Vision, named: Mapping[str, str]) -> InternVLProcessor:
    _check_tile(settings, _square(settings, 384), vision)
    _check_tokens(settings, "image_seq_length", vision)
    return open_internvl(settings, vision, named)


def _fixed_size(settings: Settings, vision: Vision, named: Mapping[str, str]) -> FixedSizeProcessor:
    side = _square(settings, 224)
    if settings.flag("do_pan_and_scan", False):
        raise PackageError(
            f"'{settings.where}' asks for pan and scan, which is not supported; set do_pan_and_scan false."
        )
    _check_tile(settings, side, vision)
    _check_tokens(settings, "image_seq_length", vision)
    return FixedSizeProcessor(
        pixels=settings.pixels(resample=2, usual_mean=0.5, usual_std=0.5),
        tile=side,
        tile_tokens=vision.tile_tokens,
        placeholder=named.get("boi_token", "<start_of_image>"),
        image_token=named.get("image_token", "<image_soft_token>"),
        end_token=named.get("eoi_token", "<end_of_image>"),
    )


# by the name in transformers
PROCESSORS: dict[str, Callable[[Settings, Vision, Mapping[str, str]], Processor]] = {
    "Idefics3Processor": _tiling,
    "SmolVLMProcessor": _tiling,
    "Gemma3Processor": _fixed_size,
    **dict.fromkeys(("InternVLProcessor", "GotOcr2Processor"), _internvl),
}
DYNAMIC_PROCESSORS: dict[str, Callable[[Settings, DynamicVision, Mapping[str, str]], Processor]] = {
    **dict.fromkeys(("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor"), open_dynamic_size),
    "Lfm3VlProcessor": open_dynamic_size,
    "Lfm2VlProcessor": open_lfm2_vl,
    "LightOnOcrProcessor": open_lighton_ocr,
    "PaddleOCRVLProcessor": open_paddleocr_vl,
    "PixtralProcessor": open_pixtral,
    "Gemma4Processor": open_aspect_ratio,
    "Gemma4UnifiedProcessor": open_unified,
    "Glm46VProcessor": open_glm46v,
}


def open_processor(folder: Path, vision: Vision | DynamicVision, named: Mapping[str, str]) -> Processor:
    """The image processor of a folder. named: special tokens by role, which tokenizer_config.json has.

    Raises PackageError where there is none, where it is not one for such a vision encoder, and where both disagree.
    """
    settings = read_settings(folder)
    if settings is None:
        raise PackageError(
            f"'{folder}' has a vision encoder and no preprocessor_config.json, which says how images are resized; copy "
            "it from the checkpoint."
        )
    processors, name = DYNAMIC_PROCESSORS if isinstance(vision, DynamicVision) else PROCESSORS, settings.processor
    if name not in processors:
        raise PackageError(
            f"'{folder}' has the image processor '{name}'; known for its vision encoder "
            f"are {', '.join(sorted(processors))}."
        )
    if isinstance(vision, DynamicVision):
        return DYNAMIC_PROCESSORS[name](settings, vision, named)
    return PROCESSORS[name](settings, vision, named)


def _check_tile(settings: Settings, tile: int, vision: Vision) -> None:
    if tile != vision.image_size:
        raise PackageError(
            f"the image processor of '{settings.where}' makes tiles of {tile} pixels; its vision encoder reads "
            f"{vision.image_size}. Copy preprocessor_config.json from the same checkpoint again."
        )


def _check_tokens(settings: Settings, name: str, vision: Vision) -> None:
    count = settings.count(name, vision.tile_tokens)
    if count != vision.tile_tokens:
        raise PackageError(
            f"'{name}' is {count} in the processor_config.json of '{settings.where}'; its vision encoder makes "
            f"{vision.tile_tokens} rows of a tile. Copy the file from the same checkpoint again."
        )
