"""preprocessor_config.json and processor_config.json, read strictly: the values that image processors are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from embedllm.errors import PackageError
from embedllm.files.json_object import read_json_object
from embedllm.types import JSON

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from embedllm.types import F32

FILES = ("preprocessor_config.json", "processor_config.json")
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)  # which settings of some processors may leave out
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MOST_TILES = 256  # of an image: a folder may be anybody's, and each of them costs memory and time; InternVL has 12
_MOST_PIXELS = 1 << 13  # a side, of what a configuration may ask for
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # numbers of Pillow's


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """How an image is resized and normalized.

    resample: Pillow's number of the kernel. mean, std: of values from 0 to 255, for each channel.
    """

    resample: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def resized(self, image: Image, width: int, height: int) -> Image:
        """By Pillow's kernels, which widen when an image becomes smaller (antialias), as those of torchvision.

        Rows first, as torch does: between both, values are rounded and clipped, and Pillow 13 may begin with columns.
        """
        for size in ((width, image.height), (width, height)):
            image = image if image.size == size else image.resize(size, self.resample)
        return image

    def normalized(self, image: Image) -> F32:
        """An RGB image as [3, height, width]: (value - mean) / std."""
        import numpy as np

        values: np.ndarray = np.asarray(image).astype(np.float32).transpose(2, 0, 1)
        mean, std = (np.asarray(each, np.float32)[:, None, None] for each in (self.mean, self.std))
        return np.ascontiguousarray((values - mean) / std)


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the two files, with checked access. where: for messages."""

    where: str
    values: Mapping[str, JSON]

    @property
    def processor(self) -> str:
        """The name of the processor in transformers, such as "SmolVLMProcessor"."""
        name = self.values.get("processor_class")
        if not isinstance(name, str):
            kind = self.values.get("image_processor_type")
            name = kind.removesuffix("Fast").replace("ImageProcessor", "Processor") if isinstance(kind, str) else ""
        return name

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._fail(name, "true or false")
        return value

    def sides(self, name: str, default: Mapping[str, int]) -> dict[str, int]:
        """An object of sides in pixels, such as {"longest_edge": 2048}."""
        value = self.values.get(name, dict(default))
        if isinstance(value, int) and not isinstance(value, bool):
            value = dict.fromkeys(("height", "width"), value)
        sides = value if isinstance(value, dict) else {}
        valid_sides = {key: side for key, side in sides.items() if _is_whole(side) and 1 <= side <= _MOST_PIXELS}
        if not valid_sides or len(valid_sides) < len(sides):
            self._fail(name, f"sides of 1 to {_MOST_PIXELS} pixels")
        return valid_sides

    def pixel_counts(self, name: str) -> dict[str, int]:
        """An object of numbers of pixels, such as {"shortest_edge": 3136, "longest_edge": 12845056}."""
        value = self.values.get(name)
        counts = value if isinstance(value, dict) else {}
        valid_counts = {
            key: count for key, count in counts.items() if _is_whole(count) and 1 <= count <= _MOST_PIXELS**2
        }
        if value is not None and (not valid_counts or len(valid_counts) < len(counts)):
            self._fail(name, f"numbers of pixels, 1 to {_MOST_PIXELS**2}")
        return valid_counts

    def count(self, name: str, default: int) -> int:
        value = self.values.get(name)
        if value is None:
            return default
        if not _is_whole(value) or value < 1:
            self._fail(name, "a whole number, 1 or more")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._numbers(name, default, 1)[0]
        if not 0 < value < _MOST_PIXELS:
            self._fail(name, "a number above 0")
        return value

    def pixels(
        self, *, resample: int, usual_mean: float | Sequence[float], usual_std: float | Sequence[float]
    ) -> Pixels:
        """The defaults are those of the processor in transformers; mean and std of values from 0 to 1."""
        kernel = self.values.get("resample")
        if kernel is None:
            kernel = resample
        if not _is_whole(kernel) or kernel not in _RESAMPLING:
            self._fail("resample", "0 to 5, one of Pillow's kernels")
        factor = self._numbers("rescale_factor", 1 / 255, 1)[0] if self.flag("do_rescale", True) else 1.0
        is_normalized = self.flag("do_normalize", True)
        means = self._numbers("image_mean", usual_mean, 3) if is_normalized else (0.0,) * 3
        stds = self._numbers("image_std", usual_std, 3) if is_normalized else (1.0,) * 3
        if not 0 < factor <= 1 or not all(0 < one < _MOST_PIXELS for one in stds):
            self._fail("image_std", "numbers above 0, as rescale_factor")
        mean, std = (tuple(one / factor for one in values) for values in (means, stds))
        return Pixels(resample=kernel, mean=mean, std=std)

    def _numbers(self, name: str, default: float | Sequence[float], count: int) -> tuple[float, ...]:
        value: object = self.values.get(name)
        if value is None:
            value = default
        values = value if isinstance(value, list | tuple) else [value] * count
        numbers = tuple(float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool))
        if not len(numbers) == count == len(values):
            self._fail(name, f"{count} numbers")
        return numbers

    def _fail(self, name: str, expected: str) -> NoReturn:
        raise PackageError(
            f"'{name}' is {self.values.get(name)!r} in the image processor's settings of '{self.where}'; expected "
            f"{expected}."
        )


def read_settings(folder: Path) -> Settings | None:
    """The settings of a folder; None where it has none. Raises PackageError for a damaged file.

    transformers 5 saves one processor_config.json, which has the image processor's settings under "image_processor".
    """
    image, processor = (read_json_object(folder / name) for name in FILES)
    inner = processor.pop("image_processor", None)
    values = {**(inner if isinstance(inner, dict) else {}), **image, **processor}
    return Settings(str(folder), values) if image or inner else None


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
