"""The image processor of models that take images of any size: what differs is the size rule, and tokens of the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from embedllm.errors import PackageError
from embedllm.images.settings import Pixels, Settings

if TYPE_CHECKING:
    from PIL.Image import Image

    from embedllm.types import F32


class SizeRule(Protocol):
    """Which size an image is resized to."""

    def grid(self, width: int, height: int, factor: int) -> tuple[int, int]:
        """Rows and columns of squares of `factor` pixels a side. Raises ValueError for an image it does not take."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnySizeProcessor:
    """An image is resized to whole squares of patches, each of which becomes a token, row by row."""

    pixels: Pixels
    factor: int  # pixels; the side of a square
    size_rule: SizeRule
    placeholder: str
    start_token: str = ""
    break_token: str = ""  # between rows
    end_token: str = ""

    def prompt_text(self, width: int, height: int) -> str:
        rows, columns = self.grid(width, height)
        return self.start_token + self.break_token.join([self.placeholder * columns] * rows) + self.end_token

    def token_count(self, width: int, height: int) -> int:
        rows, columns = self.grid(width, height)
        return rows * columns

    def grid(self, width: int, height: int) -> tuple[int, int]:
        return self.size_rule.grid(width, height, self.factor)

    def pixel_values(self, image: Image) -> F32:
        rows, columns = self.grid(*image.size)
        return self.pixels.normalized(self.pixels.resized(image, columns * self.factor, rows * self.factor))[None]


def check_resizes(settings: Settings) -> None:
    """Raises PackageError where images keep their size."""
    if not settings.flag("do_resize", True):
        raise PackageError(f"'{settings.where}' has do_resize false; the sides of images have to be of whole patches.")


def check_encoder(settings: Settings, expected: Mapping[str, int]) -> None:
    """Raises PackageError where settings and the vision encoder, which has these values, disagree."""
    for name, value in expected.items():
        if (actual := settings.count(name, value)) != value:
            raise PackageError(
                f"'{name}' is {actual} in the image processor's settings of '{settings.where}', and {value} in its "
                "vision encoder. Copy the settings from the same checkpoint again."
            )
