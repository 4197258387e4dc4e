"""GPTQ against its textbook form, which inverts what is left of the gram matrix again for every column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedllm.errors import ExportError
from embedllm.export.quantization.importance import mean_products, mean_square, weighing
from embedllm.export.rounding.compensation import block_columns, compensated, feedback
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


def rounded(rows: F32, x: F32, packing: Packing, *, most: int = 1 << 20, floor: float = 0.01, share: float = 1) -> F32:
    """The rows as they are stored when errors are compensated in blocks of at most `most` columns."""
    size = block_columns(rows.shape[1], packing.group_size, most)
    spread = feedback(mean_products(x, size, "a matrix"), packing.group_size, floor=floor, shrinkage=share)
    return dequantize(compensated(rows, spread, packing), packing, rows.shape[1])


def lost(rows: F32, other: F32, x: F32) -> float:
    """Of the products, relative."""
    return float(np.square(x @ (rows - other).T).sum() / np.square(x @ rows.T).sum())


@pytest.mark.parametrize("packing", PACKINGS, ids=named)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_textbooks(packing: Packing, seed: int) -> None:
    rows, x = matrix(12, 64, seed), inputs(64, seed)
    found, wanted = rounded(rows, x, packing), textbook(rows, x.T @ x, packing)
    # a row in which one value lies between two steps goes another way from there on
    same = np.isclose(found, wanted, atol=1e-5).all(axis=1)
    assert same.sum() >= 10
    assert lost(rows, found, x) == pytest.approx(lost(rows, wanted, x), rel=0.05)


@pytest.mark.parametrize("packing", PACKINGS, ids=named)
@pytest.mark.parametrize("columns", [64, 72])  # the last group of 72 is not full
def test_products_lose_less_than_by_rounding_alone(packing: Packing, columns: int) -> None:
    rows, x = matrix(40, columns, 1), inputs(columns, 2)
    found, plain = rounded(rows, x, packing), dequantize(quantize(rows, packing, search=True), packing, columns)
    assert found.shape == rows.shape
    assert lost(rows, found, x) < 0.5 * lost(rows, plain, x)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), symmetric=st.booleans(), columns=st.integers(70, 200))
def test_wider_blocks_lose_no_more_of_the_products_they_are_made_for(seed: int, symmetric: bool, columns: int) -> None:
    """All columns less than blocks, these less than groups; of many rows together, since one may be unlucky."""
    rows, x = matrix(60, columns, seed), inputs(columns, seed)
    packing = Packing(bits=4, group_size=16, symmetric=symmetric)
    groups, blocks, whole = (lost(rows, rounded(rows, x, packing, most=most), x) for most in (16, 64, 1 << 20))
    assert whole < blocks < groups < lost(rows, dequantize(quantize(rows, packing, search=True), packing, columns), x)


@pytest.mark.parametrize("symmetric", [True, False])
def test_columns_compensate_errors_of_those_before_them_for_other_inputs_too(symmetric: bool) -> None:
    rows, packing = matrix(200, 128, 7), Packing(bits=4, group_size=16, symmetric=symmetric)
    both = inputs(128, 8, 600)
    x, other = both[:300], both[300:]
    blocks, group = (lost(rows, rounded(rows, x, packing, most=most, floor=0.1, share=0.4), other) for most in (64, 16))
    weights = weighing(mean_square(x, "a matrix"))
    weighted = dequantize(quantize(rows, packing, search=True, weights=weights), packing, 128)
    assert blocks < group < lost(rows, weighted, other)


def test_products_that_few_inputs_show_by_chance_are_better_counted_in_part() -> None:
    """The inputs of different groups have nothing in common."""
    random, packing = np.random.default_rng(9), Packing(bits=4, group_size=16)
    both = random.standard_normal((1200, 128)) + 2 * np.repeat(random.standard_normal((1200, 8)), 16, axis=1)
    x, other = both[:200].astype(np.float32), both[200:].astype(np.float32)
    rows = matrix(200, 128, 10)
    whole, part, none = (lost(rows, rounded(rows, x, packing, share=share), other) for share in (1, 0.3, 0))
    assert none < part < whole


def test_blocks_are_whole_groups_and_about_equal() -> None:
    for columns, group, most, expected in (
        (576, 32, 256, 192), (1536, 32, 256, 256), (640, 32, 256, 224), (71, 16, 256, 80), (96, 128, 64, 128),
    ):  # fmt: skip
        assert block_columns(columns, group, most) == expected


@pytest.mark.parametrize("packing", PACKINGS, ids=named)
@pytest.mark.parametrize("gram", [np.eye(64), np.zeros((64, 64))], ids=["inputs alike and apart", "no inputs"])
def test_where_nothing_can_be_made_up_for_it_is_plain_rounding(packing: Packing, gram: F32) -> None:
    rows = matrix(20, 64, 3)
    found = compensated(rows, feedback(gram[None].astype(np.float32), packing.group_size, floor=0.01), packing)
    wanted = quantize(rows, packing, search=True)
    assert np.array_equal(found.weight, wanted.weight)
    assert np.array_equal(found.scale, wanted.scale)
    assert (found.zero is None) == (wanted.zero is None)
    if found.zero is not None:
        assert np.array_equal(found.zero, np.asarray(wanted.zero))


def test_weights_that_are_not_finite_are_refused() -> None:
    packing = Packing(bits=4, group_size=16)
    rows = matrix(4, 16, 0)
    rows[2, 5] = np.nan
    with pytest.raises(ExportError, match="not finite"):
        compensated(rows, feedback(np.eye(16, dtype=np.float32)[None], 16, floor=0.01), packing)


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
