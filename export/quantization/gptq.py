"""GPTQ: rounds a matrix column by column, and lets the columns that follow make up for what each rounding lost.

What counts is not how near the weights stay but how near their products with real inputs do: tr(E G E^T), for the
errors E and the inputs' gram matrix G = X^T X. Frantar et al. 2022, https://arxiv.org/abs/2210.17323. The scales of a
group are searched (scale_search.py) when its first column is due, on what the weights have become by then, each column
weighing as much as its rounding costs in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.rounding.quantize import inverse, pack_transposed, scales
from embedllm.package.packing import Packed, Packing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32

_DAMPING = 0.01  # of the mean square of an input, added to all: inputs that were hardly seen are not to be trusted


def compensation(gram: F32, packing: Packing) -> F32:
    """How the error of each column spreads over those behind it: upper triangular, [size, size], U^T U = G^-1.

    gram: [K, K], X^T X of the inputs. size: K, filled up to whole groups.
    Raises ExportError for inputs that are not finite.
    """
    size = packing.groups(len(gram)) * packing.group_size
    filled = np.zeros((size, size))
    filled[: len(gram), : len(gram)] = gram
    damping = _DAMPING * float(np.trace(filled)) / len(gram)
    if not np.isfinite(damping):
        raise ExportError("the inputs of a matrix are not finite (NaN or infinity) on the calibration text.")
    filled[np.diag_indices(size)] += damping or 1.0  # inputs that are all zero: nothing to make up for
    # G = R R^T with R upper triangular is the Cholesky decomposition from the other end, and U = R^-1
    upper = np.linalg.cholesky(filled[::-1, ::-1])[::-1, ::-1]
    return np.linalg.inv(upper).astype(np.float32)


def compensated(rows: F32, spread: F32, packing: Packing) -> Packed:
    """Rows [n, K] of a matrix, quantized. spread: what compensation() gave for their inputs."""
    size, group, levels = len(spread), packing.group_size, 1 << packing.bits
    left = np.zeros((size, len(rows)), np.float32)  # a row for each column, so that one lies together
    left[: rows.shape[1]] = rows.T
    integers = np.empty(left.shape, np.uint8)
    half = np.empty((size // group, len(rows)), np.float16)
    zeros: NDArray[np.uint8] | None = None if packing.symmetric else np.empty(half.shape, np.uint8)
    for index, start in enumerate(range(0, size, group)):
        stop = start + group
        block, own = left[start:stop], spread[start:stop, start:stop]
        half[index], zero = scales(block, packing, search=True, weights=np.divide(1, np.square(np.diag(own)))[:, None])
        if zeros is not None:
            zeros[index] = zero
        errors = np.empty_like(block)
        step, per_step = half[index].astype(np.float32), inverse(half[index])
        for at in range(group):
            whole = np.clip(np.rint(block[at] * per_step) + zero, 0, levels - 1)
            integers[start + at] = whole
            errors[at] = (block[at] - (whole - zero) * step) / own[at, at]
            block[at + 1 :] -= own[at, at + 1 :, None] * errors[at]
        left[stop:] -= spread[start:stop, stop:].T @ errors
    return pack_transposed(integers, half, zeros, packing)
