"""GPTQ against its textbook form, which inverts what is left of the gram matrix again for every column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from embedllm.errors import ExportError
from embedllm.export.quantization.gptq import compensated, compensation
from embedllm.export.rounding.quantize import inverse, quantize, scales
from embedllm.package.packing import Packing, dequantize
from tests.export.quantization.test_quantize import named

if TYPE_CHECKING:
    from embedllm.types import F32

PACKINGS = [
    Packing(bits=4, group_size=16),
    Packing(bits=4, group_size=16, symmetric=False),
    Packing(bits=4, group_size=32),
    Packing(bits=8, group_size=16),
]


def inputs(columns: int, seed: int, count: int = 400) -> F32:
    """Correlated ones, as activations are: each a mixture of a few."""
    random = np.random.default_rng(seed)
    mixture = random.standard_normal((columns // 4, columns)) * random.uniform(0.2, 3, columns)
    found = random.standard_normal((count, columns // 4)) @ mixture + random.standard_normal((count, columns)) / 3
    return found.astype(np.float32)


def matrix(rows: int, columns: int, seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def textbook(rows: F32, gram: F32, packing: Packing) -> F32:
    """Optimal brain quantization in the order of the columns, in float64."""
    left, columns = rows.astype(np.float64), rows.shape[1]
    damped = gram.astype(np.float64) + 0.01 * np.trace(gram) / columns * np.eye(columns)
    found = np.zeros_like(left)
    half, zero = np.empty(0, np.float16), np.empty(0, np.float32)
    for at in range(columns):
        rest = np.linalg.inv(damped[at:, at:])
        if at % packing.group_size == 0:
            stop = at + packing.group_size
            weights = np.array([1 / np.linalg.inv(damped[i:, i:])[0, 0] for i in range(at, stop)], np.float32)
            transposed = np.ascontiguousarray(left[:, at:stop].T.astype(np.float32))
            half, zero = scales(transposed, packing, search=True, weights=weights[:, None])
        levels = 1 << packing.bits
        whole = np.clip(np.rint(left[:, at] * inverse(half)) + zero, 0, levels - 1)
        found[:, at] = (whole - zero) * half.astype(np.float64)
        left[:, at:] -= ((left[:, at] - found[:, at]) / rest[0, 0])[:, None] * rest[0]
    return found.astype(np.float32)


def lost(rows: F32, other: F32, x: F32) -> float:
    """Of the products, relative."""
    return float(np.square(x @ (rows - other).T).sum() / np.square(x @ rows.T).sum())


@pytest.mark.parametrize("packing", PACKINGS, ids=named)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_textbooks(packing: Packing, seed: int) -> None:
    rows, x = matrix(12, 64, seed), inputs(64, seed)
    gram = x.T @ x
    found = dequantize(compensated(rows, compensation(gram, packing), packing), packing, 64)
    wanted = textbook(rows, gram, packing)
    # a row in which one value lies between two steps goes another way from there on
    same = np.isclose(found, wanted, atol=1e-5).all(axis=1)
    assert same.sum() >= 10
    assert lost(rows, found, x) == pytest.approx(lost(rows, wanted, x), rel=0.05)


@pytest.mark.parametrize("packing", PACKINGS, ids=named)
@pytest.mark.parametrize("columns", [64, 72])  # the last group of 72 is not full
def test_products_lose_less_than_by_rounding_alone(packing: Packing, columns: int) -> None:
    rows, x = matrix(40, columns, 1), inputs(columns, 2)
    found = dequantize(compensated(rows, compensation(x.T @ x, packing), packing), packing, columns)
    rounded = dequantize(quantize(rows, packing, search=True), packing, columns)
    assert found.shape == rows.shape
    assert lost(rows, found, x) < 0.5 * lost(rows, rounded, x)


@pytest.mark.parametrize("packing", PACKINGS, ids=named)
@pytest.mark.parametrize("gram", [np.eye(64), np.zeros((64, 64))], ids=["inputs alike and apart", "no inputs"])
def test_where_nothing_can_be_made_up_for_it_is_plain_rounding(packing: Packing, gram: F32) -> None:
    rows = matrix(20, 64, 3)
    found = compensated(rows, compensation(gram.astype(np.float32), packing), packing)
    wanted = quantize(rows, packing, search=True)
    assert np.array_equal(found.weight, wanted.weight)
    assert np.array_equal(found.scale, wanted.scale)
    assert (found.zero is None) == (wanted.zero is None)
    if found.zero is not None:
        assert np.array_equal(found.zero, np.asarray(wanted.zero))


def test_inputs_that_are_not_finite_are_refused() -> None:
    gram = np.eye(16, dtype=np.float32)
    gram[3, 3] = np.inf
    with pytest.raises(ExportError, match="not finite"):
        compensation(gram, Packing(bits=4, group_size=16))


def test_weights_that_are_not_finite_are_refused() -> None:
    packing = Packing(bits=4, group_size=16)
    rows = matrix(4, 16, 0)
    rows[2, 5] = np.nan
    with pytest.raises(ExportError, match="not finite"):
        compensated(rows, compensation(np.eye(16, dtype=np.float32), packing), packing)


def test_a_weighted_search_leaves_the_least_weighted_error() -> None:
    """One heavy value among light ones gets a step of its own; without weights the many decide."""
    transposed = np.array([[7.3], *[[0.61 * n - 4] for n in range(15)]], np.float32)
    packing = Packing(bits=4, group_size=16)
    weights = np.array([1000, *[1] * 15], np.float32)

    def off(half: np.ndarray) -> float:
        whole = np.clip(np.rint(transposed * inverse(half)), -8, 7)
        return float(np.square(whole * half - transposed)[0, 0])

    plain, _ = scales(transposed, packing, search=True)
    weighted, _ = scales(transposed, packing, search=True, weights=weights[:, None])
    assert off(weighted) < off(plain)
