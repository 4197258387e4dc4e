"""Draws the pictures of samples/seeing with Pillow, as a reader would: no sprite and no scene of the training.

    python -m tools.train_seeing_model.make_pictures samples/seeing/pictures Lato-Regular.ttf

The font, the words and the pair of colour and shape "purple star" are of those that training does not show.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tools.train_seeing_model.sprites import draw_shape

_COLOURS = {"red": (214, 30, 36), "blue": (30, 80, 220), "green": (30, 150, 60), "yellow": (250, 215, 30),
            "purple": (120, 40, 170), "black": (15, 15, 15), "orange": (250, 145, 10)}  # fmt: skip
_SIDE = 256


def _shapes(*placed: tuple[str, str, int, int, int], background: str = "white") -> Image.Image:
    """placed: colour, shape, middle, size in pixels."""
    image = Image.new("RGB", (_SIDE, _SIDE), background)
    for colour, shape, x, y, size in placed:
        image.paste(_COLOURS[colour], (x - 64, y - 64), draw_shape(shape, size, 0, 128))
    return image


def _text(text: str, font: str, size: int, *, colour: str, width: int = _SIDE, height: int = _SIDE) -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    where = (width // 2, height // 2)
    ImageDraw.Draw(image).text(where, text, _COLOURS[colour], ImageFont.truetype(font, size), anchor="mm")
    return image


def make(folder: Path, font: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    both = _shapes(("red", "heart", 70, 80, 80), ("blue", "square", 185, 90, 60))
    where, file = (128, 205), ImageFont.truetype(font, 48)
    ImageDraw.Draw(both).text(where, "garden", _COLOURS["black"], file, anchor="mm")
    pictures = {
        "shapes": _shapes(("red", "circle", 70, 80, 90), ("purple", "star", 180, 170, 100)),
        "count": _shapes(*(("blue", "triangle", x, y, 56) for x, y in ((60, 60), (190, 70), (80, 185), (195, 195)))),
        "digit": _text("7", font, 170, colour="green"),
        "word": _text("river", font, 72, colour="black", width=288, height=160),
        "both": both,
    }
    for name, image in pictures.items():
        image.save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2])
