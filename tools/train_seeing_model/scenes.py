"""Random pictures as data: what is on them, where and in which colour. rendering.py makes pixels of them."""

from __future__ import annotations

import colorsys
import math
import string
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from tools.train_seeing_model import words
from tools.train_seeing_model.sprites import CHARACTERS, DIGIT_SIZES, GLYPH_SIZES, ROTATIONS, SHAPE_SIZES, SHAPES

SIDE = 128  # pixels of a picture
RGB = tuple[float, float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom

# hue in degrees (may pass 360), saturation, value: from, to
COLOURS = {
    "red": ((354, 366), (0.8, 1.0), (0.75, 1.0)),
    "orange": ((25, 36), (0.9, 1.0), (0.95, 1.0)),
    "yellow": ((50, 60), (0.75, 1.0), (0.93, 1.0)),
    "green": ((100, 145), (0.65, 1.0), (0.5, 0.85)),
    "blue": ((212, 242), (0.7, 1.0), (0.65, 1.0)),
    "purple": ((270, 292), (0.6, 1.0), (0.45, 0.8)),
    "pink": ((322, 350), (0.25, 0.55), (0.95, 1.0)),
    "brown": ((18, 30), (0.6, 0.85), (0.35, 0.55)),
    "black": ((0, 360), (0.0, 0.1), (0.0, 0.12)),
    "white": ((0, 360), (0.0, 0.03), (0.95, 1.0)),
    "grey": ((0, 360), (0.0, 0.06), (0.42, 0.66)),
}
HELD_OUT_PAIRS = (("purple", "star"), ("orange", "triangle"), ("green", "heart"), ("yellow", "cross"), ("blue", "moon"))
_NAMES = tuple(COLOURS)
_CLOSE = (("red", "orange"), ("orange", "yellow"), ("red", "pink"), ("orange", "brown"), ("white", "pink"),
          ("black", "brown"), ("red", "brown"), ("purple", "blue"), ("white", "yellow"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape or a large digit. kind: a name of SHAPES, or a digit. x, y: of its middle, as it is seen."""

    kind: str
    colour: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Word:
    """A printed word or number."""

    text: str
    colour: str
    x: float
    y: float


@dataclass(slots=True)
class Scene:
    """A picture. background: a colour's name, or "" where it has no clear one.

    shapes, glyphs: rows of a sprite's number, left, top, red, green, blue. theta: the inverse warp, of torch's grids.
    """

    background: str = ""
    backdrop: tuple[RGB, RGB] = ((1, 1, 1), (1, 1, 1))
    gradient: float = 0.0  # direction
    things: list[Thing] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    shapes: list[tuple[float, ...]] = field(default_factory=list)
    glyphs: list[tuple[float, ...]] = field(default_factory=list)
    theta: tuple[float, ...] = (1, 0, 0, 0, 1, 0)
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """What a set of pictures may show. of_words: printed words, beside random letters."""

    fonts: tuple[int, ...]
    of_words: tuple[str, ...] = tuple(words.TRAINED)
    random_words: float = 0.6  # the share of words of random letters
    pairs: tuple[tuple[str, str], ...] = ()  # of colours and shapes, one of which each picture with shapes has


class Fonts:
    """Advance widths, and which fonts only the evaluation shows."""

    def __init__(self, file: Path) -> None:
        arrays = np.load(file)
        self.advances: list[list[list[float]]] = arrays["advances"].tolist()
        held_out: list[bool] = arrays["held_out"].tolist()
        self.trained = tuple(at for at, is_held_out in enumerate(held_out) if not is_held_out)
        self.held_out = tuple(at for at, is_held_out in enumerate(held_out) if is_held_out)


def colour_of(name: str, random: Random) -> RGB:
    hue, saturation, value = (random.uniform(*span) for span in COLOURS[name])
    return colorsys.hsv_to_rgb(hue / 360 % 1, saturation, value)


class Composer:
    """Makes scenes of a split."""

    def __init__(self, fonts: Fonts, split: Split, random: Random) -> None:
        self.fonts, self.split, self.random = fonts, split, random

    def scene(self) -> Scene:
        random, scene = self.random, Scene()
        self._background(scene)
        boxes: list[Box] = []
        kind = random.random()
        count_words = 1 if kind < 0.42 or kind > 0.85 else 0
        if kind < 0.08:
            count_words = 2
        count_shapes = 0 if kind < 0.36 else random.choices(range(1, 7), (26, 24, 18, 14, 10, 8))[0]
        if count_words and count_shapes:
            count_shapes = min(count_shapes, 3)
        for _ in range(count_words):
            self._word(scene, boxes, alone=not count_shapes and count_words == 1)
        if 0.36 <= kind < 0.56:
            self._digit(scene, boxes, alone=kind < 0.5)
            count_shapes = 0 if kind < 0.5 else min(count_shapes, 2)
        self._shapes(scene, boxes, count_shapes)
        self._warp(scene, boxes)
        scene.noise = random.uniform(0, 0.04) if random.random() < 0.3 else 0.0
        return scene

    def _background(self, scene: Scene) -> None:
        random, kind = self.random, self.random.random()
        if kind < 0.7:
            weights = [8 if name == "white" else 2 if name == "black" else 1 for name in _NAMES]
            scene.background = random.choices(_NAMES, weights)[0]
            one = colour_of(scene.background, random)
            scene.backdrop = (one, one)
            return
        pale = [colorsys.hsv_to_rgb(random.random(), random.uniform(0, 0.2), random.uniform(0.82, 1)) for _ in "12"]
        if kind < 0.76:  # a dark one
            pale = [
                colorsys.hsv_to_rgb(random.random(), random.uniform(0, 0.5), random.uniform(0.1, 0.25)) for _ in "12"
            ]
        scene.backdrop = (pale[0], pale[kind > 0.85])
        scene.gradient = random.uniform(0, 2 * math.pi)

    def _colour(self, scene: Scene, shape: str = "") -> tuple[str, RGB]:
        """One that is seen on the background, and is not held out for this shape."""
        while True:
            name = self.random.choice(_NAMES)
            if name == scene.background or (name, shape) in HELD_OUT_PAIRS:
                continue
            if any({name, scene.background} == set(pair) for pair in _CLOSE):
                continue
            value = colour_of(name, self.random)
            if all(math.dist(value, one) > 0.38 for one in scene.backdrop):
                return name, value

    def _word(self, scene: Scene, boxes: list[Box], *, alone: bool) -> None:
        random = self.random
        text, font = self._text(), random.choice(self.split.fonts)
        for _ in range(12):
            size = random.randrange(len(GLYPH_SIZES))
            advances = self.fonts.advances[font][size]
            spacing = random.choice((0.0, 0.0, 0.0, 1.0, 2.0))
            pens = [0.0]
            for one in text:
                pens.append(pens[-1] + advances[CHARACTERS.index(one)] + spacing)
            width, height = pens[-1], GLYPH_SIZES[size] * 1.2
            if width > SIDE - 8 or (not alone and width > 90 and GLYPH_SIZES[size] > 14):
                continue
            left, top = random.uniform(4, SIDE - 4 - width), random.uniform(2, SIDE - 2 - height)
            box = (left, top, left + width, top + height)
            if any(_overlap(box, other, 3) for other in boxes):
                continue
            boxes.append(box)
            name, value = self._colour(scene)
            base = (font * len(GLYPH_SIZES) + size) * len(CHARACTERS)
            scene.glyphs += [
                (base + CHARACTERS.index(one), round(left + pen) - 4, round(top) - 2, *value)
                for one, pen in zip(text, pens, strict=False)
            ]
            scene.words.append(Word(text, name, left + width / 2, top + height / 2))
            return

    def _text(self) -> str:
        random = self.random
        kind = random.random()
        if kind < 0.15:  # a number; one digit is asked for as such
            most = 10 ** random.randint(2, 5)
            return str(random.randrange(most // 10, most))
        if kind < 0.15 + 0.85 * self.split.random_words:
            length = random.choices(range(1, 9), (2, 4, 10, 14, 14, 10, 6, 4))[0]
            letters = random.choices(string.ascii_lowercase, k=length)
            if random.random() < 0.5:  # easier to say
                letters[::2] = random.choices("aeiou", k=len(letters[::2]))
            word = "".join(letters)
        else:
            word = random.choice(self.split.of_words)
        style = random.random()
        return word if style < 0.55 else word.upper() if style < 0.8 else word.capitalize()

    def _digit(self, scene: Scene, boxes: list[Box], *, alone: bool) -> None:
        random = self.random
        font, size = random.choice(self.split.fonts), random.randrange(len(DIGIT_SIZES) if alone else 3)
        digit, radius = random.randrange(10), DIGIT_SIZES[size] * 0.42
        for _ in range(12):
            x, y = (random.uniform(radius + 2, SIDE - radius - 2) for _ in "xy")
            box = (x - radius, y - radius, x + radius, y + radius)
            if any(_overlap(box, other, 3) for other in boxes):
                continue
            boxes.append(box)
            name, value = self._colour(scene)
            number = len(SHAPES) * len(SHAPE_SIZES) * ROTATIONS + (font * len(DIGIT_SIZES) + size) * 10 + digit
            scene.shapes.append((number, round(x) - 56, round(y) - 56, *value))
            scene.things.append(Thing(str(digit), name, x, y))
            return

    def _shapes(self, scene: Scene, boxes: list[Box], count: int) -> None:
        random = self.random
        most = (len(SHAPE_SIZES), 9, 7, 5, 4, 3)[max(count - 1, 0)]
        if boxes:
            most = min(most, 5)
        alike = random.random() < 0.35  # pictures to count on
        one = random.choice(SHAPES)
        for place in range(count):
            shape = one if alike and random.random() < 0.85 else random.choice(SHAPES)
            name, value = self._colour(scene, shape)
            if not place and self.split.pairs:
                pairs = [pair for pair in self.split.pairs if pair[0] != scene.background]
                name, shape = random.choice(pairs)
                value = colour_of(name, random)
                if any(math.dist(value, one) <= 0.38 for one in scene.backdrop):
                    scene.background, scene.backdrop = "white", ((1, 1, 1), (1, 1, 1))
            for _ in range(25):
                size = random.randrange(most)
                radius = SHAPE_SIZES[size] / 2
                x, y = (random.uniform(radius + 2, SIDE - radius - 2) for _ in "xy")
                box = (x - radius, y - radius, x + radius, y + radius)
                if any(_overlap(box, other, 2) for other in boxes):
                    continue
                boxes.append(box)
                turn = random.randrange(ROTATIONS)
                number = (SHAPES.index(shape) * len(SHAPE_SIZES) + size) * ROTATIONS + turn
                scene.shapes.append((number, round(x) - 56, round(y) - 56, *value))
                scene.things.append(Thing(shape, name, x, y))
                break

    def _warp(self, scene: Scene, boxes: list[Box]) -> None:
        """Stretches, as pictures that are no squares are, moves and rotates a little."""
        random = self.random
        if random.random() < 0.35 or not boxes:
            return
        left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
        right, bottom = max(box[2] for box in boxes), max(box[3] for box in boxes)
        least = 0.85 if scene.words else 0.7
        most = 2.6 if scene.words and not scene.things else 1.3
        limit_x, limit_y = (SIDE - 6) / (right - left), (SIDE - 6) / (bottom - top)
        zoom_x = min(math.exp(random.uniform(math.log(least), math.log(1.3))), limit_x)
        zoom_y = min(math.exp(random.uniform(math.log(least), math.log(most))), limit_y)
        turn = math.radians(random.uniform(-6, 6)) if random.random() < 0.4 else 0.0
        middle = ((left + right) / 2, (top + bottom) / 2)
        half = ((right - left) / 2 * zoom_x, (bottom - top) / 2 * zoom_y)
        target = [random.uniform(h + 2, SIDE - h - 2) if h + 2 < SIDE / 2 else SIDE / 2 for h in half]
        cos, sin = math.cos(turn), math.sin(turn)
        # seen = Z R (drawn - middle) + target; grids want drawn in terms of seen, from -1 to 1
        a, b, c, d = cos / zoom_x, sin / zoom_y, -sin / zoom_x, cos / zoom_y
        unit = [one / (SIDE / 2) - 1 for one in (*middle, *target)]
        scene.theta = (
            a, b, unit[0] - a * unit[2] - b * unit[3], c, d, unit[1] - c * unit[2] - d * unit[3],
        )  # fmt: skip

        def seen(x: float, y: float) -> tuple[float, float]:
            x, y = x - middle[0], y - middle[1]
            return (cos * x - sin * y) * zoom_x + target[0], (sin * x + cos * y) * zoom_y + target[1]

        scene.things = [Thing(one.kind, one.colour, *seen(one.x, one.y)) for one in scene.things]
        scene.words = [Word(one.text, one.colour, *seen(one.x, one.y)) for one in scene.words]


def _overlap(one: Box, other: Box, margin: float) -> bool:
    return (
        one[0] < other[2] + margin
        and other[0] < one[2] + margin
        and one[1] < other[3] + margin
        and other[1] < one[3] + margin
    )
