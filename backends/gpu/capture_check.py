"""Whether captured runs give the logits of kernels that are launched one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embedllm.types import F32, Logits

_CLOSE = 0.05  # of the spread of the logits: another length of the mask sums attention in another order


def why_different(captured: F32, launched: F32) -> str:
    """What is wrong with the first [T, V], by the second; empty: nothing."""
    difference = float(np.abs(captured - launched).max() / np.ptp(launched))
    return "" if difference < _CLOSE else f"captured, their logits differ by {difference:.2g} of the spread"


def on_host(rows: Sequence[Logits]) -> F32:
    """All logits of rows, wherever they lie [T, V]."""
    return np.array([row.values(range(row.size)) for row in rows], np.float32)
