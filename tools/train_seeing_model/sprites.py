"""The sprites that pictures are composed of: shapes, large digits and glyphs of fonts, drawn once by Pillow.

Each is a mask of 8 bits, antialiased. A font named with "=test" after it is shown by the evaluation only.
"""

from __future__ import annotations

import math
import string
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "cross", "ring", "moon")
SHAPE_SIDE, GLYPH_SIDE = 112, 64  # of a mask
SHAPE_SIZES = tuple(range(20, 104, 6))  # pixels
DIGIT_SIZES = (40, 52, 66, 82, 98)  # pixels of the font
GLYPH_SIZES = (11, 12, 13, 14, 15, 16, 18, 20, 22, 25, 28, 32, 37, 43)
CHARACTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
ROTATIONS = 6
_MOST_DEGREES = {"circle": 0, "ring": 0, "star": 36, "moon": 180, "square": 10, "diamond": 8}
_SCALE = 4  # pixels of a drawing for one of the mask


def _polygon(shape: str) -> list[tuple[float, float]]:
    """Corners from -1 to 1, downwards."""
    if shape == "square":
        return [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]
    if shape == "triangle":
        return [(0.0, -0.9), (1.0, 0.85), (-1.0, 0.85)]
    if shape == "diamond":
        return [(0.0, -1.0), (0.72, 0.0), (0.0, 1.0), (-0.72, 0.0)]
    if shape == "cross":
        arm = 0.34
        return [(-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm),
                (arm, 1), (-arm, 1), (-arm, arm), (-1, arm), (-1, -arm), (-arm, -arm)]  # fmt: skip
    if shape == "star":
        angles = [math.pi * (point / 5 - 0.5) for point in range(10)]
        radii = [1.0, 0.42] * 5
        return [
            (radius * math.cos(angle), radius * math.sin(angle)) for angle, radius in zip(angles, radii, strict=True)
        ]
    angles = [math.pi * step / 60 for step in range(120)]  # the heart curve
    return [
        (math.sin(a) ** 3,
         -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)) / 16)
        for a in angles
    ]  # fmt: skip


def draw_shape(shape: str, size: float, degrees: float, side: int = SHAPE_SIDE) -> Image.Image:
    """A mask [side, side] with the shape of this diameter in its middle."""
    image = Image.new("L", (side * _SCALE, side * _SCALE))
    draw, middle, radius = ImageDraw.Draw(image), side * _SCALE / 2, size * _SCALE / 2

    def disc(x: float, y: float, r: float, fill: int) -> None:
        x, y, r = middle + x * radius, middle + y * radius, r * radius
        draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    if shape in ("circle", "ring", "moon"):
        disc(0, 0, 1, 255)
        if shape == "ring":
            disc(0, 0, 0.6, 0)
        if shape == "moon":
            turn = math.radians(degrees)
            disc(0.5 * math.cos(turn), 0.5 * math.sin(turn), 0.82, 0)
    else:
        turn = math.radians(degrees)
        cos, sin = math.cos(turn), math.sin(turn)
        corners = [(x * cos - y * sin, x * sin + y * cos) for x, y in _polygon(shape)]
        draw.polygon([(middle + x * radius, middle + y * radius) for x, y in corners], fill=255)
    return image.resize((side, side), Image.Resampling.BOX)


def draw_text(font: ImageFont.FreeTypeFont, text: str, side: int, *, centred: bool) -> Image.Image:
    """A mask of a text: in the middle, or with the pen at the left and the ascender at the top."""
    image = Image.new("L", (side, side))
    draw = ImageDraw.Draw(image)
    if centred:
        draw.text((side / 2, side / 2), text, fill=255, font=font, anchor="mm")
    else:
        draw.text((4, 2), text, fill=255, font=font, anchor="la")
    return image


def make(fonts: list[str]) -> dict[str, np.ndarray]:
    """The arrays of sprites.npz, which scenes.Sprites describes."""
    paths = [name.removesuffix("=test") for name in fonts]
    shapes = []
    for shape in SHAPES:
        most = _MOST_DEGREES.get(shape, 15)
        for size in SHAPE_SIZES:
            for step in range(ROTATIONS):
                shapes.append(draw_shape(shape, size, most * (2 * step / (ROTATIONS - 1) - 1)))
    glyphs, advances = [], []
    for path in paths:
        for size in DIGIT_SIZES:
            font = ImageFont.truetype(path, size)
            shapes += [draw_text(font, digit, SHAPE_SIDE, centred=True) for digit in string.digits]
        for size in GLYPH_SIZES:
            font = ImageFont.truetype(path, size)
            glyphs += [draw_text(font, one, GLYPH_SIDE, centred=False) for one in CHARACTERS]
            advances.append([font.getlength(one) for one in CHARACTERS])
    return {
        "shapes": np.stack([np.asarray(one) for one in shapes]),
        "glyphs": np.stack([np.asarray(one) for one in glyphs]),
        "advances": np.asarray(advances, np.float32).reshape(len(paths), len(GLYPH_SIZES), len(CHARACTERS)),
        "fonts": np.asarray([Path(path).name for path in paths]),
        "held_out": np.asarray([name.endswith("=test") for name in fonts]),
    }
