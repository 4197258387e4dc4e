"""Gemma 4's image processor: an image keeps its shape and is scaled to fill a budget of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor, sqrt
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.images.any_size import AnySizeProcessor, check_encoder, check_resizes
from embedllm.images.settings import Pixels, Settings, read_settings
from embedllm.package.architecture.vision import DynamicVision

_BUDGET, _KEY = 280, "max_soft_tokens"  # tokens of an image at most, where settings do not say


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """Sides are whole squares, rounded down, of an image of as many pixels as the budget holds.

    Source: image_processing_gemma4.py and processing_gemma4.py of transformers (5.24).
    """

    most_tokens: int

    def grid(self, width: int, height: int, factor: int) -> tuple[int, int]:
        """At least one row and one column, so that a long narrow image has another shape than before."""
        scale = sqrt(self.most_tokens * factor**2 / (width * height))
        rows, columns = (floor(scale * side / factor) for side in (height, width))
        if not rows:
            return 1, min(width // height, self.most_tokens)
        if not columns:
            return min(height // width, self.most_tokens), 1
        return rows, columns


def open_aspect_ratio(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> AnySizeProcessor:
    """The processor of these settings. Raises PackageError where they and the vision encoder disagree."""
    check_encoder(settings, {"patch_size": vision.patch_size, "pooling_kernel_size": vision.merge_size})
    return _opened(settings, vision, named, _centred(settings))


def open_unified(settings: Settings, vision: DynamicVision, named: Mapping[str, str]) -> AnySizeProcessor:
    """As open_aspect_ratio(), for Gemma 4 12B: its model has no encoder, and reads squares of patches as they are."""
    sides = settings.count("patch_size", 16), settings.count("pooling_kernel_size", 3)
    if sides[0] * sides[1] != vision.patch_size:
        raise PackageError(
            f"'patch_size' is {sides[0]} and 'pooling_kernel_size' {sides[1]} in the image processor's settings of "
            f"'{settings.where}'; its model reads squares of {vision.patch_size} pixels a side. Copy the settings "
            "from the same checkpoint again."
        )
    return _opened(settings, vision, named, _pixels(settings))


def _opened(settings: Settings, vision: DynamicVision, named: Mapping[str, str], pixels: Pixels) -> AnySizeProcessor:
    check_resizes(settings)
    most = settings.count(_KEY, _BUDGET)
    if vision.positions_by_axis and most * vision.merge_size > vision.positions_side:
        raise PackageError(
            f"'{_KEY}' is {most} in the image processor's settings of '{settings.where}'; its vision encoder has "
            f"positions for {vision.positions_side // vision.merge_size} tokens in a row."
        )
    return AnySizeProcessor(
        pixels=pixels,
        factor=vision.factor,
        size_rule=TokenBudget(most_tokens=most),
        placeholder=named.get("image_token", "<|image|>"),
        start_token=named.get("boi_token", "<|image>"),
        end_token=named.get("eoi_token", "<image|>"),
    )


def most_tokens(folder: Path) -> int:
    """Tokens that an image of a folder has at most; the usual number where its settings cannot be read."""
    try:
        settings = read_settings(folder)
        return _BUDGET if settings is None else settings.count(_KEY, _BUDGET)
    except PackageError:  # which its first image will raise again
        return _BUDGET


def _centred(settings: Settings) -> Pixels:
    """The model itself makes -1 to 1 of values from 0 to 1: here that is one step with what settings ask for."""
    pixels = _pixels(settings)
    halves = [one / 2 for one in pixels.std]
    middle = tuple(mean + half for mean, half in zip(pixels.mean, halves, strict=True))
    return replace(pixels, mean=middle, std=tuple(halves))


def _pixels(settings: Settings) -> Pixels:
    is_normalized = settings.flag("do_normalize", False)
    own = settings if is_normalized else Settings(settings.where, {**settings.values, "do_normalize": False})
    return own.pixels(resample=3, usual_mean=0.0, usual_std=1.0)
