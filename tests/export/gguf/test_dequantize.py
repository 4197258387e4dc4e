"""GGUF's types as they are stored, against the dequantization of the Python package gguf: equal bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedllm.export.gguf.dequantize import block_floats, packed_rows
from embedllm.export.gguf.iq_grids import ALL_FORMS
from embedllm.export.gguf.types import TYPES
from tests.support.packed_matrices import as_runtimes_see, assert_same_floats

ROWS, COLUMNS = 12, 512
# where the blocks of a type have float16 numbers: bytes from their start
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (), "NVFP4": (),
    "TQ1_0": (52,), "TQ2_0": (64,), "IQ1_S": (0,), "IQ1_M": (), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
    "IQ3_XXS": (0,), "IQ3_S": (0,),
}  # fmt: skip
EXTREMES = np.array([0, -0.0, 2**-24, -(2**-24), 65504, -65504, 2**-14], np.float16)


def some_blocks(name: str, seed: int, count: int) -> np.ndarray:
    """Any bytes, with scales that are numbers: usual ones, and the extremes of either sign."""
    kind = next(kind for kind in TYPES.values() if kind.name == name)
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (count, kind.bytes), dtype=np.uint8)
    for place in HALVES[name]:
        usual = (random.standard_normal(count) / 64).astype(np.float16)
        scales = np.where(random.random(count) < 0.3, random.choice(EXTREMES, count), usual)
        blocks[:, place : place + 2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(8, 240, count)  # so that neither a value nor a sum leaves float32's usual range
    if name == "IQ1_M":
        blocks[:, 55] &= 0xBF  # the scale lies in pieces; without this bit it is neither infinite nor no number
    return blocks


def expected_floats(name: str, blocks: np.ndarray) -> np.ndarray:
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]).astype(np.float32)


@pytest.mark.parametrize("name", ALL_FORMS)
def test_every_runtime_has_the_floats_of_the_gguf_package(name: str, tmp_path: Path) -> None:
    kind = next(kind for kind in TYPES.values() if kind.name == name)
    blocks = some_blocks(name, 3, ROWS * COLUMNS // kind.values)
    expected = expected_floats(name, blocks).reshape(ROWS, COLUMNS)
    form = ALL_FORMS[name]
    packed = packed_rows(form, blocks, ROWS)
    for how, floats in as_runtimes_see(tmp_path, packed, form.packing, COLUMNS):
        assert_same_floats(floats, expected, packed, form.packing, how)


@pytest.mark.parametrize("name", ALL_FORMS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 40))
def test_any_blocks_stand_for_the_floats_of_the_gguf_package(name: str, seed: int, count: int) -> None:
    blocks = some_blocks(name, seed, count)
    np.testing.assert_array_equal(block_floats(ALL_FORMS[name], blocks), expected_floats(name, blocks))


def test_a_block_of_q4_k_worked_by_hand() -> None:
    """d = 2, dmin = 1; the first group has scale 3 and minimum 5, and the codes 0, 1, 2 ...; the rest is 0."""
    block = np.zeros((1, 144), np.uint8)
    block[0, :4] = np.array([2, 1], "<f2").view(np.uint8)
    block[0, 4], block[0, 8] = 3, 5
    block[0, 16:32] = np.arange(16)
    found = block_floats(ALL_FORMS["Q4_K"], block)
    np.testing.assert_array_equal(found[0, :16], 2 * 3 * np.arange(16) - 5)
    np.testing.assert_array_equal(found[0, 16:32], np.full(16, -5))
    np.testing.assert_array_equal(found[0, 32:], np.zeros(224))
