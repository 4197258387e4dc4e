"""Weight -> packed tensor, in the layout that ONNX Runtime and OpenVINO share (docs/format.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.rounding.scale_search import search_asymmetric, search_symmetric
from embedllm.package.packing import Packed, Packing, pack_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F16, F32


_LEAST_EXPONENT = -24  # of float16
_LEAST_STEP, _LOG_127 = np.float32(2.0**-24), np.float32(np.log2(127))
_SEARCHED = (4,)  # bits; eight lose a two-hundredth of what four do (docs/numerics.md)
NOT_FINITE = "the weights hold values that are not finite (NaN or infinity); expected finite numbers."


def quantize(rows: F32, packing: Packing, *, search: bool = False, weights: F32 | None = None) -> Packed:
    """A scale per group, to the nearest step of it: value = (q - zero) * scale.

    rows: [n, K], float32. The scale is rounded to float16 before the values are rounded by it, so that nothing is
    lost twice. Symmetric: the value of the largest magnitude becomes exactly -2**(bits-1) steps, so that the whole
    range of the integer is used (as in GGUF's Q4_0 and ONNX Runtime's own quantizer).
    search: of 4 bits, the scales with the least squared error instead (scale_search.py).
    weights: [K], what a squared error in each column counts in a search; None: all alike.
    Raises ExportError for weights that are not finite or too large for a float16 scale.
    """
    grouped = _grouped(rows, packing)
    transposed = np.ascontiguousarray(
        grouped.reshape(-1, packing.group_size).T
    )  # NumPy reduces a short last axis slowly
    weighing = None if weights is None else _tiled(weights, packing, len(rows))
    half, zeros = scales(transposed, packing, search=search, weights=weighing)
    half, zeros = half.reshape(grouped.shape[:2]), zeros.reshape(grouped.shape[:2])
    steps = grouped * inverse(half)[:, :, None]
    np.rint(steps, out=steps)
    steps += zeros[:, :, None]
    np.clip(steps, 0, (1 << packing.bits) - 1, out=steps)
    zero = None if packing.symmetric else pack_bits(zeros.astype(np.uint8), packing.bits)
    return Packed(pack_bits(steps.astype(np.uint8), packing.bits), half, zero)


def scales(transposed: F32, packing: Packing, *, search: bool, weights: F32 | None = None) -> tuple[F16, F32]:
    """The scale and the zero point of each group, [groups].

    transposed: [size, groups], the values. search: as quantize().
    weights: [size, groups] or [size, 1], of the squared errors in a search.

    Raises ExportError for values that are not finite or too large for a float16 scale.
    """
    low, high = transposed.min(axis=0), transposed.max(axis=0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ExportError(NOT_FINITE)
    with np.errstate(over="ignore", invalid="ignore"):  # found and named below
        scale, zeros = _scales(transposed, low, high, packing, weights, search=search and packing.bits in _SEARCHED)
        half = scale.astype(np.float16)
    if not np.isfinite(half).all():
        raise ExportError(f"a weight of {np.abs(transposed).max():.3g} needs a scale beyond float16; use 32 bits.")
    return half, zeros


def _scales(
    transposed: F32, low: F32, high: F32, packing: Packing, weights: F32 | None, *, search: bool
) -> tuple[F32, F32]:
    levels = 1 << packing.bits
    if packing.symmetric:
        extreme: F32 = np.where(-low >= high, low, high)
        scale = (
            search_symmetric(transposed, extreme, levels, weights) if search else extreme / np.float32(-(levels // 2))
        )
        if packing.bits == 8:
            _make_exact(transposed, extreme, scale)
        return scale, np.full_like(scale, levels // 2)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    if search:
        return search_asymmetric(transposed, low, high, levels, weights)
    scale = (high - low) / np.float32(levels - 1)
    return scale, np.clip(np.rint(-low * inverse(scale.astype(np.float16))), 0, levels - 1)


def _make_exact(transposed: F32, extreme: F32, scale: F32) -> None:
    """Gives groups whose values are at most 127 steps of a power of two that step: MXFP4 loses nothing in 8 bits.

    scale: what they have so far. One that is exact already stays, so that what can be is stored as before.
    """
    step = np.exp2(np.maximum(np.ceil(np.log2(np.maximum(np.abs(extreme), _LEAST_STEP)) - _LOG_127), _LEAST_EXPONENT))
    step = step.astype(np.float32)
    groups = np.flatnonzero(extreme)
    for rows in (transposed[:4], transposed):  # hardly any other weights pass the first look
        groups = groups[_is_exact(rows[:, groups], step[groups])]
    groups = groups[~_is_exact(transposed[:, groups], scale[groups].astype(np.float16).astype(np.float32))]
    scale[groups] = step[groups]


def _is_exact(values: F32, step: F32) -> NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = values / step
    whole = (np.rint(steps) == steps) & (steps >= -128) & (steps <= 127)
    is_exact: NDArray[np.bool_] = np.logical_and.reduce(whole, axis=0)
    return is_exact


def inverse(scale: F16) -> F32:
    """1 / scale, and 0 for 0."""
    wide = scale.astype(np.float32)
    return np.divide(1.0, wide, out=np.zeros_like(wide), where=wide != 0)


def _grouped(rows: F32, packing: Packing) -> F32:
    """[n, K] -> [n, groups, group], the last group filled up with zeros."""
    count, columns = rows.shape
    missing = packing.groups(columns) * packing.group_size - columns
    if missing:
        rows = np.pad(rows, ((0, 0), (0, missing)))
    return rows.reshape(count, -1, packing.group_size)


def _tiled(weights: F32, packing: Packing, rows: int) -> F32:
    """[K], alike in all rows, -> [group, rows * groups], as quantize() turns the values."""
    return np.tile(_grouped(weights[None], packing)[0].T, (1, rows))
