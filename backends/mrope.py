"""M-RoPE: where the tokens of a prompt with images stand, and the rows of the rotary tables for them.

A token of text has the position behind what is in front of it, and there the time, the row and the column of an image
begin. Its tokens are at that time, at their rows and columns; what follows stands behind the longer side.
So positions are a function of the tokens, whatever their KV was computed with.
Source: Qwen2-VL (Wang et al. 2024); get_rope_index() of transformers' modeling_qwen3_vl.py (5.24).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from embedllm.backends.images import FIRST_ID, place_in_image
from embedllm.package.rope import mrope_axes, tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.images import ImageFeatures
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.rope import Mrope, Rope
    from embedllm.types import F32


class _Span(NamedTuple):
    """An image in a sequence."""

    start: int  # place of its first token
    position: int  # of its first row and column
    rows: int
    columns: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def behind(self) -> int:
        """The position of what follows."""
        return self.position + max(self.rows, self.columns)


class ImagePlaces:
    """The images of one sequence, and what they make of the positions of its tokens."""

    def __init__(self, rope: Rope, mrope: Mrope, images: ImageFeatures) -> None:
        self._rope, self._axes, self._images = rope, mrope_axes(mrope, rope.rotary_dim // 2), images
        self._spans: list[_Span] = []

    def __bool__(self) -> bool:
        """Whether any token has a position that is not its place."""
        return bool(self._spans)

    @property
    def layout(self) -> tuple[tuple[int, ...], ...]:
        """What positions follow from: of each image its place and position, and its rows and columns."""
        return tuple(self._spans)

    def rewind(self, place: int) -> None:
        """Forgets what begins at this place of the sequence, or behind it."""
        while self._spans and self._spans[-1].start >= place:
            self._spans.pop()

    def put(self, place: int, tokens: Sequence[int]) -> None:
        """Says which tokens stand from that place on; those from there on before are forgotten.

        Raises ValueError for ids of an image that is not there.
        """
        self.rewind(place)
        if max(tokens, default=0) < FIRST_ID:
            return
        for at, token in enumerate(tokens, place):
            if token < FIRST_ID:
                continue
            start, last = at - place_in_image(token), self._spans[-1] if self._spans else None
            if last is None or start > last.start:
                position = start if last is None else last.behind + start - last.end
                self._spans.append(_Span(start, position, *self._images.grid(token)))

    def position(self, place: int) -> int:
        """Of a token of text behind all images."""
        return place - self._spans[-1].end + self._spans[-1].behind if self._spans else place

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """Time, row and column of the tokens from `start` to before `stop`, [tokens, 3]."""
        positions = np.repeat(np.arange(start, stop)[:, None], 3, axis=1)
        for span in self._spans:
            if span.start >= stop:
                break
            behind = np.arange(max(span.end, start), stop)
            positions[behind - start] = (behind - span.end + span.behind)[:, None]
            inside = np.arange(max(span.start, start), min(span.end, stop))
            row, column = np.divmod(inside - span.start, span.columns)
            positions[inside - start] = span.position + np.stack([np.zeros_like(row), row, column], axis=1)
        return positions

    def rope_rows(self, start: int, stop: int) -> tuple[F32, F32]:
        """cos and sin of those tokens, [tokens, rotated / 2] each."""
        positions = self.positions(start, stop)
        first = int(positions.min())
        at = positions[:, self._axes] - first  # [tokens, rotated / 2]
        cos, sin = tables(self._rope, int(positions.max()) + 1, first)
        pairs = np.arange(len(self._axes))
        return cos[at, pairs], sin[at, pairs]


def open_places(decoder: Decoder, images: ImageFeatures | None) -> ImagePlaces | None:
    """Of a new sequence; None where positions are places whatever is fed."""
    mrope = decoder.rope.mrope
    return None if mrope is None or images is None else ImagePlaces(decoder.rope, mrope, images)
