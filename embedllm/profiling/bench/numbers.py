"""Medians, percentiles and ratios within a round. Standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which that share lies, linear between the two nearest (NumPy's default, Hyndman and Fan's 7).

    values: at least one, in any order. percent: 0 to 100.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most of at least one value."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def latencies(values: Sequence[float]) -> dict[str, float]:
    """The percentiles that latencies are quoted by; of at least one value, in its unit."""
    return {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}


def ratio(speeds: Sequence[float], base: Sequence[float]) -> float:
    """How many times as fast as another engine: the median of the rounds' own ratios, which drift cancels out of.

    Both hold one speed a round, in the same order.
    """
    return statistics.median(mine / theirs for mine, theirs in zip(speeds, base, strict=True))
