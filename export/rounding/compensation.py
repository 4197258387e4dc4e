"""GPTQ: rounds a matrix column by column, and lets the columns that follow compensate what each rounding lost.

What counts is not how near the weights stay but how near their products with real inputs do: tr(E G E^T), for the
errors E and the inputs' Gram matrix G = X^T X. Frantar et al. 2022, https://arxiv.org/abs/2210.17323. The scales of a
group are searched (scale_search.py) when its first column is due, on what the weights have become by then, each column
weighted by what its rounding costs in the end. Within a group the columns follow GPTQ; from group to group the feedback
is that of LDLQ, which gives the same and inverts no factor of all columns: Chee et al. 2023,
https://arxiv.org/abs/2307.13304.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from embedllm.export.rounding.quantize import inverse, scales
from embedllm.package.packing import Packed, Packing, pack_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F16, F32, U8

# Of each group of columns: [blocks, group, columns from its first one to the end of the block].
Feedback: TypeAlias = "Sequence[F32]"

# Multiplications of a product that OpenBLAS makes on the thread that asks for it (65,536 * 4 in its interface/gemm.c):
# pieces of a matrix are rounded on all cores as it is
_ON_ONE_THREAD = 1 << 18


def block_columns(columns: int, group_size: int, most: int) -> int:
    """The columns of each block when a matrix is compensated in blocks: whole groups, `most` columns or one group.

    Blocks are about equally large; the last one may go beyond the matrix.
    """
    groups = -(-columns // group_size)
    blocks = -(-groups // max(1, most // group_size))
    return -(-groups // blocks) * group_size


def feedback(grams: F32, group_size: int, *, floor: float, shrinkage: float = 1.0) -> Feedback:
    """How errors of columns change those behind them in their block; those before a group are left out.

    For G = R R^T with R upper triangular, and groups of columns g, h: R_gg^-1 on the diagonal, by which GPTQ goes
    through the columns of a group, and R_gh R_hh^-1 right of it: how the errors of a whole group change one behind it.

    grams: [blocks, size, size], X^T X of the inputs of each block of columns. floor: of the mean square of an input of
    the matrix, what is added to each: a text may hardly use one that another text does. shrinkage: what products of
    inputs of different groups are multiplied by; a few thousand tokens tell those of one group, but not those of all.
    """
    blocks, size, _ = grams.shape
    factors = tuple(np.empty((blocks, group_size, size - start), np.float32) for start in range(0, size, group_size))
    added = _added(grams, floor)
    for block, gram in enumerate(grams):  # one by one: the decomposition takes several times their memory
        damped = gram.astype(np.float64)
        np.einsum("ii->i", damped)[...] += added
        for own, all_columns in zip(factors, _feedback(damped, group_size, shrinkage), strict=True):
            own[block] = all_columns[:, size - own.shape[2] :]
    return factors


def _feedback(damped: NDArray[np.float64], group_size: int, shrinkage: float) -> NDArray[np.float64]:
    """The same of one block, [groups, group, size], with zeros before each group."""
    size = len(damped)
    groups = size // group_size
    if shrinkage != 1:
        group = np.arange(size) // group_size
        damped = damped * np.where(group[:, None] == group, 1, shrinkage)
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]  # the Cholesky decomposition from the other end
    tiles = upper.reshape(groups, group_size, groups, group_size).transpose(0, 2, 1, 3)
    tiles = np.ascontiguousarray(tiles)  # BLAS does not take what goes backwards
    inverses = np.linalg.inv(np.einsum("ggij->gij", tiles))
    products = tiles @ inverses
    np.einsum("ggij->gij", products)[...] = inverses
    return products.transpose(0, 2, 1, 3).reshape(groups, group_size, size)


def damp(grams: F32, floor: float) -> NDArray[np.float64]:
    """Gram matrices [blocks, size, size] of the inputs of a matrix, with `floor` of their mean square added to each."""
    matrices = grams.astype(np.float64)
    np.einsum("bii->bi", matrices)[...] += _added(grams, floor)
    return matrices


def _added(grams: F32, floor: float) -> float:
    """`floor` of the mean square of an input; 1 for inputs that are all zero: nothing to compensate."""
    return float(floor * np.einsum("bii->bi", grams).mean(dtype=np.float64)) or 1.0


def compensated(rows: F32, spread: Feedback, packing: Packing) -> Packed:
    """Rows [n, K] of a matrix, quantized. spread: feedback() of their inputs.

    Raises ExportError for weights that are not finite or too large for a float16 scale.
    """
    (count, columns), (blocks, group, size) = rows.shape, spread[0].shape
    padded = np.pad(rows, ((0, 0), (0, blocks * size - columns)))
    # a row for each column, so that one lies together
    values = np.ascontiguousarray(padded.T).reshape(blocks, size, count)
    left = values.copy()  # what is to be rounded: the values, and what compensates the errors so far
    integers = np.empty(left.shape, np.uint8)
    half = np.empty((blocks, size // group, count), np.float16)
    zeros = np.empty(half.shape, np.uint8)
    for index, start in enumerate(range(0, size, group)):
        here, stop = slice(start, start + group), start + group
        own, behind = np.split(spread[index], [group], axis=2)
        integers[:, here], half[:, index], zeros[:, index] = _rounded(left[:, here], own, packing)
        if stop < size:
            errors = integers[:, here].astype(np.float32)
            errors -= zeros[:, None, index]
            errors *= half[:, None, index]
            np.subtract(values[:, here], errors, out=errors)
            _feed_back(left[:, stop:], behind, errors)
    return _packed(integers, half, zeros, packing, columns)


def _feed_back(left: F32, spread: F32, errors: F32) -> None:
    """Changes what is behind a group of each block: [blocks, rest, n], [blocks, group, rest], [blocks, group, n]."""
    blocks, group, count = errors.shape
    behind = left.reshape(blocks, -1, group, count)  # views: there are whole groups
    each = spread.reshape(blocks, group, -1, group).transpose(0, 2, 3, 1)
    step = max(1, _ON_ONE_THREAD // group**2)
    for start in range(0, count, step):
        behind[..., start : start + step] += each @ errors[:, None, :, start : start + step]


def _rounded(values: F32, spread: F32, packing: Packing) -> tuple[U8, F16, F32]:
    """A group of each block: integers [blocks, group, n], scales and zero points [blocks, n].

    values: [blocks, group, n]. spread: [blocks, group, group].
    """
    blocks, size, count = values.shape
    left = np.array(values.transpose(1, 0, 2), order="C")  # not the caller's
    costs = np.repeat(1 / np.square(np.einsum("bii->ib", spread)), count, axis=1)
    half, zeros = scales(left.reshape(size, -1), packing, search=True, weights=costs)
    half, zeros = half.reshape(blocks, count), zeros.reshape(blocks, count)
    step, per_step, most = half.astype(np.float32), inverse(half), (1 << packing.bits) - 1
    own = np.ascontiguousarray(spread.transpose(1, 2, 0))[..., None]
    integers = np.empty(left.shape, np.uint8)
    for at in range(size):
        whole = np.clip(np.rint(left[at] * per_step) + zeros, 0, most)
        integers[at] = whole
        errors = (left[at] - (whole - zeros) * step) / own[at, at]
        left[at + 1 :] -= own[at, at + 1 :] * errors
    return integers.transpose(1, 0, 2), half, zeros


def _packed(integers: U8, half: F16, zeros: U8, packing: Packing, columns: int) -> Packed:
    """[blocks, size, n] and [blocks, groups, n] -> as they are stored, without what is beyond the matrix."""
    groups, count = packing.groups(columns), integers.shape[2]
    values = integers.reshape(-1, count)[: groups * packing.group_size].T.reshape(count, groups, packing.group_size)
    scale = np.ascontiguousarray(half.reshape(-1, count)[:groups].T)
    zero = np.ascontiguousarray(zeros.reshape(-1, count)[:groups].T)
    weight = pack_bits(np.ascontiguousarray(values), packing.bits)
    return Packed(weight, scale, None if packing.symmetric else pack_bits(zero, packing.bits))
