"""Scales of groups of a few bits, searched: those that leave the least squared error among many.

A plain scale stretches the integers over the whole range of a group. A smaller one cuts off its extremes and rounds all
else finer. Each candidate is a divisor; the integers that it gives have their own best scale, the quotient of two sums
(least squares), and that of the best candidate is kept. Needs nothing but the weights. How much nearer the model stays
to the original: docs/numerics.md#searched-scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embedllm.types import F32

# of the plain scale, which comes first so that nothing replaces it that is not better; the negative ones give the one
# integer more that there is below zero to the other end of the group
_SYMMETRIC = (1.0, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, -0.75, -0.8, -0.85, -0.9, -0.95, -1.0, -1.05, -1.1, -1.14)
_ASYMMETRIC = (0.74, 0.8, 0.86, 0.92, 0.98, 1.04)  # each with the two zero points next to where the middle falls
_BETTER = np.float32(1 + 1e-6)  # less than that is rounding: a group that a plain scale holds exactly keeps it


def search_symmetric(transposed: F32, extreme: F32, levels: int, weights: F32 | None = None) -> F32:
    """The scale of each group, in steps around a zero point of levels / 2.

    transposed: [size, groups], the values. extreme: [groups], the value of the largest magnitude.
    weights: [size, groups] or [size, 1], of the squared errors; None: all alike.
    """
    half = np.float32(levels // 2)
    steps = ((-half / np.float32(f), half) for f in _SYMMETRIC)
    ratio, _ = _best(_divided(transposed, extreme), steps, levels, weights)
    return ratio * extreme


def search_asymmetric(transposed: F32, low: F32, high: F32, levels: int, weights: F32 | None = None) -> tuple[F32, F32]:
    """The scale and the zero point of each group.

    transposed: [size, groups], the values. low, high: [groups], the ends of the stored range, which has 0 in it.
    weights: [size, groups] or [size, 1], of the squared errors; None: all alike.
    """
    width: F32 = high - low
    middle = _divided((low + high) / np.float32(2), width)
    most = np.float32(levels - 1)

    def candidates() -> Iterator[tuple[np.float32, F32]]:
        yield most, np.clip(np.rint(most / 2 - middle * most), 0, most)  # the plain one
        for factor in _ASYMMETRIC:
            step = most / np.float32(factor)
            below = np.floor(most / 2 - middle * step)
            yield from ((step, np.clip(zero, 0, most)) for zero in (below, below + 1))

    ratio, zero = _best(_divided(transposed, width), candidates(), levels, weights)
    return ratio * width, zero


def _best(
    values: F32, candidates: Iterator[tuple[np.float32, F32 | np.float32]], levels: int, weights: F32 | None
) -> tuple[F32, F32]:
    """By group the best scale, and the zero point that goes with it.

    candidates: steps in 1, and the zero point. The first one is what stands where none can be told to be better.
    For integers u the best scale is sum(x u) / sum(u u), which leaves sum(x x) - sum(x u)**2 / sum(u u); with weights,
    all of these sums have them.
    """
    best = ratio = zeros = np.empty(0, np.float32)  # the first candidate sets them
    weighted = values if weights is None else values * weights
    for place, (steps, zero) in enumerate(candidates):
        integers = values * steps
        np.rint(integers, out=integers)
        np.clip(integers, -zero, np.float32(levels - 1) - zero, out=integers)
        product = np.einsum("ig,ig->g", weighted, integers)
        weighing = integers if weights is None else integers * weights
        square = np.einsum("ig,ig->g", weighing, integers)
        fits = np.divide(product, square, out=np.zeros_like(product), where=square != 0)
        explained = fits * product
        if place == 0:
            best, ratio = explained, np.where(square != 0, fits, 1 / steps)
            zeros = np.broadcast_to(zero, fits.shape).copy()
        better = explained > best * _BETTER
        np.copyto(best, explained, where=better)
        np.copyto(ratio, fits, where=better)
        np.copyto(zeros, zero, where=better)
    return ratio, zeros


def _divided(values: F32, by: F32) -> F32:
    """values / by, and zeros where that is zero."""
    return values * np.divide(1, by, out=np.zeros_like(by), where=by != 0)
