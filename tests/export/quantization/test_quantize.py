"""Groups of 4- and 8-bit values: worked by hand, bounded in their error, and read alike by ONNX Runtime."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from embedllm.errors import ExportError
from embedllm.export.rounding.quantize import quantize
from embedllm.package.packing import Packed, Packing, dequantize

if TYPE_CHECKING:
    from embedllm.types import F32

FORMATS = [
    Packing(bits=bits, group_size=group, symmetric=symmetric)
    for bits in (4, 8)
    for group in (16, 32, 64, 128, 256)
    for symmetric in (True, False)
]


def named(packing: Packing) -> str:
    return f"{packing.bits} bits, group {packing.group_size}, {'symmetric' if packing.symmetric else 'zero points'}"


def of(*values: float) -> F32:
    return np.array([values], np.float32)


# Groups worked by hand


def test_symmetric_4_bit_group_by_hand() -> None:
    """-4 is the largest magnitude: it becomes -8 steps of 0.5, so -4.0, -3.5, ... 3.5 are the values 0, 1, ... 15."""
    weights = of(*(step * 0.5 for step in range(-8, 8)))
    packed = quantize(weights, Packing(bits=4, group_size=16))
    assert packed.scale.tolist() == [[0.5]]
    assert packed.zero is None
    assert packed.weight.tolist() == [[[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]]


def test_a_positive_extreme_turns_the_scale_negative_and_its_negative_counterpart_is_cut_to_7_steps() -> None:
    """+8 becomes -8 steps of -1, the value 0; -7.75 would be +8 steps, one more than there is."""
    packed = quantize(of(8, -7.75, 1, -1, *[0] * 12), Packing(bits=4, group_size=16))
    assert packed.scale.tolist() == [[-1.0]]
    assert packed.weight[0, 0, :3].tolist() == [0xF0, 0x97, 0x88]  # 0 and 15; 7 and 9; 8 and 8
    back = dequantize(packed, Packing(bits=4, group_size=16), 16)
    assert back[0, :5].tolist() == [8, -7, 1, -1, 0]


def test_asymmetric_4_bit_group_by_hand() -> None:
    """From -4 to 11 are 15 steps of 1, so the zero point is 4."""
    packing = Packing(bits=4, group_size=16, symmetric=False)
    packed = quantize(of(*range(-4, 12)), packing)
    assert packed.scale.tolist() == [[1.0]]
    assert packed.zero is not None
    assert packed.zero.tolist() == [[4]]
    assert packed.weight.tolist() == [[[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]]


@pytest.mark.parametrize(("first", "zero", "values"), [(15, 0, range(0, 16)), (-30, 15, range(0, 16))])
def test_an_asymmetric_range_always_reaches_zero(first: int, zero: int, values: range) -> None:
    """15 ... 30 is stored as 0 ... 30 and -30 ... -15 as -30 ... 0: 15 steps of 2, so that a zero stays a zero."""
    packing = Packing(bits=4, group_size=16, symmetric=False)
    packed = quantize(of(*range(first, first + 16)), packing)
    assert packed.scale.tolist() == [[2.0]]
    assert packed.zero is not None
    assert packed.zero.tolist() == [[zero]]
    back = dequantize(packed, packing, 16)
    assert np.abs(back - of(*range(first, first + 16))).max() <= 1  # half a step


def test_8_bit_groups_by_hand() -> None:
    weights = of(-128, -127, -1, 0, 1, 126, 127, *[0] * 9)
    symmetric = quantize(weights, Packing(bits=8, group_size=16))
    assert symmetric.scale.tolist() == [[1.0]]
    assert symmetric.weight[0, 0, :7].tolist() == [0, 1, 127, 128, 129, 254, 255]
    packing = Packing(bits=8, group_size=16, symmetric=False)
    asymmetric = quantize(weights + of(*[28] * 7, *[0] * 9), packing)  # -100 ... 155: 255 steps of 1
    assert asymmetric.scale.tolist() == [[1.0]]
    assert asymmetric.zero is not None
    assert asymmetric.zero.tolist() == [[100]]
    assert asymmetric.weight[0, 0, :7].tolist() == [0, 1, 127, 128, 129, 254, 255]


@pytest.mark.parametrize("packing", FORMATS[:2] + FORMATS[10:12], ids=named)
@pytest.mark.parametrize("search", [False, True])
def test_a_group_of_zeros_stays_zero(packing: Packing, search: bool) -> None:
    packed = quantize(np.zeros((2, 16), np.float32), packing, search=search)
    assert np.all(packed.scale == 0)
    assert np.all(dequantize(packed, packing, 16) == 0)


def test_the_last_group_is_filled_up_with_zeros() -> None:
    """18 columns in groups of 16: the second group holds 2 values and 14 zeros, 8 as stored."""
    packed = quantize(of(*[-8] * 16, -16, 14), Packing(bits=4, group_size=16))
    assert packed.scale.tolist() == [[1.0, 2.0]]
    assert packed.weight.tolist() == [[[0x00] * 8, [0xF0, *[0x88] * 7]]]
    assert dequantize(packed, Packing(bits=4, group_size=16), 18).tolist() == [[*[-8] * 16, -16, 14]]


def test_zero_points_of_an_odd_number_of_groups_fill_each_row_up_to_a_whole_byte() -> None:
    """Three groups from -4, -8 and -1 on: zero points 4, 8 and 1, and a nibble of nothing, in every row."""
    row = [*range(-4, 12), *range(-8, 8), *range(-1, 15)]
    packing = Packing(bits=4, group_size=16, symmetric=False)
    packed = quantize(np.array([row, row[::-1]], np.float32), packing)
    assert packed.zero is not None
    assert packed.zero.tolist() == [[0x84, 0x01], [0x81, 0x04]]
    assert dequantize(packed, packing, 48).tolist() == [row, row[::-1]]


def test_values_are_rounded_by_the_scale_that_is_stored() -> None:
    """1/3 as float16 is 0.33325195, and 8/3 is -8 of those steps (8.002, rounded): one rounding, not two."""
    packed = quantize(of(-8 / 3, *[0] * 15), Packing(bits=4, group_size=16))
    assert packed.scale.tolist() == [[0.333251953125]]
    assert dequantize(packed, Packing(bits=4, group_size=16), 16)[0, 0] == -8 * 0.333251953125


def test_a_searched_scale_by_hand() -> None:
    """10 and fifteen 1s: steps of 1.25 make each 1 a 1.25. The integers 8 and 1 fit best with (80 + 15) / (64 + 15)."""
    packing = Packing(bits=4, group_size=16)
    packed = quantize(of(10, *[1] * 15), packing, search=True)
    assert packed.scale.tolist() == [[np.float16(-95 / 79)]]
    assert packed.weight[0, 0].tolist() == [0x70, *[0x77] * 7]  # -8 and -1 as stored


def test_a_searched_scale_cuts_an_extreme_off_where_that_costs_least() -> None:
    """-9 alone would need steps of 9/8; with steps of 1 it becomes -8, and the fifteen others are exact."""
    packing = Packing(bits=4, group_size=16)
    others = [-7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]
    packed = quantize(of(-9, *others), packing, search=True)
    integers = np.array([-8, *others])
    assert packed.scale.tolist() == [[np.float16((72 + 280) / (64 + 280))]]
    assert np.array_equal(np.rint(dequantize(packed, packing, 16)[0] / np.float32(packed.scale[0, 0])), integers)


# Properties


@st.composite
def matrices(draw: st.DrawFn) -> F32:
    """Rows of awkward widths in the precision of a checkpoint, with outliers and groups of nothing."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.integers(1, 5)), draw(st.sampled_from((1, 2, 15, 16, 17, 31, 33, 48, 80, 100, 255, 257, 300)))
    weights = random.standard_normal(shape) * draw(st.sampled_from((1e-2, 1.0, 300.0)))
    weights += draw(st.sampled_from((0, 0, 1)))  # some rows lie on one side of zero
    weights[random.random(shape) < draw(st.sampled_from((0, 0.01)))] *= 50
    weights[:, random.random(shape[1]) < draw(st.sampled_from((0, 0.9)))] = 0
    single = weights.astype(np.float32)
    kind = draw(st.sampled_from(("F32", "F16", "BF16")))
    if kind == "BF16":
        return (single.view(np.uint32) >> 16 << 16).view(np.float32)
    return single.astype(np.float16 if kind == "F16" else np.float32).astype(np.float32)


@given(matrices(), st.sampled_from(FORMATS))
def test_no_value_moves_further_than_half_a_step(weights: F32, packing: Packing) -> None:
    """But for what the integers do not reach.

    Symmetric: the opposite of the extreme, at up to a whole step. Asymmetric: the rounding of the scale, up to 2**-11
    of it, adds up over 255 steps to an eighth of one at the far end.
    """
    count, columns = weights.shape
    packed = quantize(weights, packing)
    error = np.abs(dequantize(packed, packing, columns) - weights)
    step = np.repeat(np.abs(packed.scale.astype(np.float32)), packing.group_size, axis=1)[:, :columns]
    levels = 1 << packing.bits
    bound = step * (0.5 if packing.symmetric else 0.5 + levels / 2048)
    if packing.symmetric:
        against = np.sign(weights) == np.sign(np.repeat(packed.scale, packing.group_size, axis=1)[:, :columns])
        bound = np.where(against & (np.abs(weights) > (levels / 2 - 1) * step), step, bound)
    subnormal = levels * 2.0**-25  # scales below 6e-5 are whole multiples of 2**-24: half of one, times the steps
    assert np.all(error <= bound * (1 + 1e-3) + subnormal)
    assert packed.weight.shape == (count, packing.groups(columns), packing.group_size * packing.bits // 8)


@given(matrices(), st.sampled_from([packing for packing in FORMATS if packing.symmetric]))
def test_quantizing_symmetrically_twice_changes_nothing(weights: F32, packing: Packing) -> None:
    """The extreme of each group lies on the end of the range, so the same scale is found again."""
    columns = weights.shape[1]
    packed = quantize(weights, packing)
    assume(np.all((packed.scale == 0) | (np.abs(packed.scale) >= np.finfo(np.float16).smallest_normal)))
    once = dequantize(packed, packing, columns)
    assert np.array_equal(once, dequantize(quantize(once, packing), packing, columns))


FOUR_BITS = [packing for packing in FORMATS if packing.bits == 4]


@given(matrices(), st.sampled_from(FOUR_BITS))
def test_no_group_is_further_off_with_searched_scales(weights: F32, packing: Packing) -> None:
    """But for the rounding of both scales to float16, which moves what is stored by 2**-11 of it at most."""
    columns = weights.shape[1]
    nearest, searched = quantize(weights, packing), quantize(weights, packing, search=True)
    normal = np.finfo(np.float16).smallest_normal
    assume(all(np.all((one.scale == 0) | (np.abs(one.scale) >= normal)) for one in (nearest, searched)))

    def errors(packed: Packed) -> F32:
        off = dequantize(packed, packing, columns) - weights
        return np.add.reduceat(off * off, range(0, columns, packing.group_size), axis=1)

    squares = np.add.reduceat(weights * weights, range(0, columns, packing.group_size), axis=1)
    assert np.all(np.sqrt(errors(searched)) <= np.sqrt(errors(nearest)) + 1.1 * 2.0**-10 * np.sqrt(squares))


@given(st.integers(0, 2**32), st.sampled_from(FOUR_BITS))
def test_what_was_of_four_bits_already_stays_as_it_is(seed: int, packing: Packing) -> None:
    """Values that have 4 bits and reach both ends: searching finds the scale that they have."""
    random = np.random.default_rng(seed)
    levels = random.integers(0, 16, (3, 2 * packing.group_size))
    levels[:, :: packing.group_size], levels[:, 1 :: packing.group_size] = 0, 15
    zero = 8 if packing.symmetric else 5
    scale = np.repeat(random.uniform(0.01, 2, (3, 2)).astype(np.float16), packing.group_size, axis=1)
    weights = ((levels - zero) * scale.astype(np.float32)).astype(np.float32)
    packed = quantize(weights, packing, search=True)
    assert np.array_equal(dequantize(packed, packing, 2 * packing.group_size), weights)


def test_eight_bits_are_not_searched() -> None:
    packing = Packing(bits=8, group_size=32)
    weights = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    assert np.array_equal(quantize(weights, packing, search=True).scale, quantize(weights, packing).scale)


@given(st.integers(0, 2**32), st.sampled_from(FORMATS), st.integers(1, 5))
def test_what_is_packed_is_unpacked_bit_for_bit(seed: int, packing: Packing, groups: int) -> None:
    """Every stored value comes back, in its place: with a scale of 1 the weights are value - zero point."""
    random = np.random.default_rng(seed)
    columns = groups * packing.group_size
    levels = 1 << packing.bits
    values = random.integers(0, levels, (3, groups, packing.group_size))
    zeros = random.integers(0, levels, (3, groups)) if not packing.symmetric else np.full((3, groups), levels // 2)
    stored_zeros = None if packing.symmetric else pack_by_hand(zeros, packing.bits)
    packed = Packed(pack_by_hand(values, packing.bits), np.ones((3, groups), np.float16), stored_zeros)
    expected = (values - zeros[..., None]).reshape(3, columns)
    assert np.array_equal(dequantize(packed, packing, columns), expected)


def pack_by_hand(values: np.ndarray, bits: int) -> np.ndarray:
    """The earlier of two values in the low nibble, one number at a time; a row's rest filled up with 0."""
    rows = values.reshape(-1, values.shape[-1]).tolist()
    if bits == 4:
        rows = [[low + 16 * high for low, high in zip(row[0::2], [*row[1::2], 0], strict=False)] for row in rows]
    return np.array(rows, np.uint8).reshape(*values.shape[:-1], -1)


# What is refused


@pytest.mark.parametrize("packing", FORMATS[:2] + FORMATS[10:12], ids=named)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("search", [False, True])
def test_weights_that_are_not_finite_are_refused(value: float, packing: Packing, search: bool) -> None:
    weights = np.ones((2, 40), np.float32)
    weights[1, 39] = value
    with pytest.raises(ExportError, match="not finite"):
        quantize(weights, packing, search=search)


@pytest.mark.parametrize("packing", FORMATS[:2] + FORMATS[10:12], ids=named)
@pytest.mark.parametrize("extreme", [7e7, 3e38])
@pytest.mark.parametrize("search", [False, True])
def test_a_weight_beyond_a_float16_scale_is_refused_with_its_size(
    extreme: float, packing: Packing, search: bool
) -> None:
    """3e38 and -3e38 are further apart than float32 reaches."""
    weights = of(extreme, -extreme, *[0] * 14)
    with pytest.raises(ExportError, match=f"weight of {re.escape(f'{extreme:.3g}')} needs a scale beyond float16"):
        quantize(weights, packing, search=search)


def test_the_largest_weight_that_a_float16_scale_holds_is_stored() -> None:
    packing = Packing(bits=4, group_size=16)
    weights = of(-8 * 65504, *[0] * 15)
    assert dequantize(quantize(weights, packing), packing, 16)[0, 0] == -8 * 65504


@pytest.mark.parametrize(("bits", "group"), [(0, 32), (2, 32), (3, 32), (5, 32), (64, 32), (4, 0), (4, 8), (4, 48)])
def test_a_packing_that_no_kernel_reads_is_refused(bits: int, group: int) -> None:
    with pytest.raises(ValueError, match=r"is \d+; expected"):
        Packing(bits=bits, group_size=group)


# Against ONNX Runtime


@pytest.mark.parametrize("packing", FORMATS, ids=named)
@pytest.mark.parametrize("groups", [2, 2.8], ids=["whole groups", "three groups, the last one partial"])
def test_onnx_runtime_reads_the_same_weights(packing: Packing, groups: float) -> None:
    """MatMulNBits multiplies the identity; GatherBlockQuantized gathers every row of the same bytes."""
    rows, columns = 7, int(packing.group_size * groups)
    weights = np.random.default_rng(packing.group_size).standard_normal((rows, columns)).astype(np.float32)
    packed = quantize(weights, packing)
    expected = dequantize(packed, packing, columns)
    product, gathered = run_by_onnx_runtime(packed, packing, rows, columns)
    assert np.array_equal(gathered[:, :columns], expected)
    assert np.abs(product.T - expected).max() <= 1e-6


def run_by_onnx_runtime(packed: Packed, packing: Packing, rows: int, columns: int) -> tuple[F32, F32]:
    flat = packed.weight.reshape(rows, -1)
    stored = {"packed": packed.weight, "flat": flat, "scale": packed.scale.astype(np.float32)}
    if packed.zero is not None:
        stored["zero"] = packed.zero
    zero = ["zero"] if packed.zero is not None else []
    shared = {"domain": "com.microsoft", "bits": packing.bits, "block_size": packing.group_size}
    nodes = [
        helper.make_node("MatMulNBits", ["a", "packed", "scale", *zero], ["product"],
                         K=columns, N=rows, accuracy_level=0, **shared),
        helper.make_node("GatherBlockQuantized", ["flat", "ids", "scale", *zero], ["gathered"],
                         gather_axis=0, quantize_axis=1, **shared),
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    inputs = [info("a", TensorProto.FLOAT, ["m", columns]), info("ids", TensorProto.INT64, ["n"])]
    outputs = [info(name, TensorProto.FLOAT, None) for name in ("product", "gathered")]
    initializers = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "weights", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    fed = {"a": np.eye(columns, dtype=np.float32), "ids": np.arange(rows)}
    product, gathered = session.run(["product", "gathered"], fed)
    return np.asarray(product), np.asarray(gathered)
