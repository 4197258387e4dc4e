"""Checkpoints of 8 bits a weight with scales, written here by their formats' own rules: FP8 and whole integers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.checkpoints.quantized.scaled import ScaledMatrix
from embedllm.files.float_types import to_float32
from embedllm.files.safetensors_header import Tensor
from embedllm.package.package import open_package
from embedllm.package.packing import Packing, dequantize
from tests.support.quantized_folders import NAME, Typed, opened, write, write_checkpoint
from tests.support.tiny import tiny_checkpoint


def small(code: int, exponent_bits: int) -> float:
    """What a code of 8 bits stands for, by the words of OFP8: the one of 5 bits has infinities, that of 4 has not."""
    mantissa_bits = 7 - exponent_bits
    sign, exponent = -1.0 if code & 128 else 1.0, (code & 127) >> mantissa_bits
    part = (code & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    bias = (1 << exponent_bits - 1) - 1
    if exponent_bits == 4 and code & 127 == 127:
        return math.nan
    if exponent_bits == 5 and exponent == 31:
        return math.nan if part else sign * math.inf
    return sign * (part * 2.0 ** (1 - bias) if exponent == 0 else (1 + part) * 2.0 ** (exponent - bias))


@pytest.mark.parametrize(("dtype", "bits"), [("F8_E4M3", 4), ("F8_E5M2", 5)])
def test_every_code_is_what_its_format_says(dtype: str, bits: int) -> None:
    expected = np.array([small(code, bits) for code in range(256)], np.float32)
    np.testing.assert_array_equal(to_float32(bytearray(range(256)), dtype), expected)


def test_some_codes_worked_by_hand() -> None:
    """0 0111 000 is 1; 0 1111 110 the largest; 1 0000 001 the least below zero."""
    assert to_float32(bytearray([0x38, 0x7E, 0x81]), "F8_E4M3").tolist() == [1.0, 448.0, -(2.0**-9)]
    assert to_float32(bytearray([0x3C, 0x7B, 0x81]), "F8_E5M2").tolist() == [1.0, 57344.0, -(2.0**-16)]


def compressed(kind: str, form: str, strategy: str, block: list[int] | None = None) -> dict[str, object]:
    weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": strategy, "block_structure": block}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


FP8: dict[str, object] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
# config, type of weights, type of scales, their name, rows and columns of each; 0: all
FORMS: dict[str, tuple[dict[str, object], str, str, str, tuple[int, int]]] = {
    "fp8": (FP8 | {"weight_block_size": [48, 64]}, "F8_E4M3", "F32", "weight_scale_inv", (48, 64)),
    "fp8, one scale": (FP8, "F8_E5M2", "F32", "weight_scale", (0, 0)),
    "fp8, fbgemm": ({"quant_method": "fbgemm_fp8"}, "F8_E4M3", "F32", "weight_scale", (1, 0)),
    "fp8, ModelOpt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "F8_E4M3", "F32", "weight_scale", (0, 0)),
    "float, rows": (compressed("float", "float-quantized", "channel"), "F8_E4M3", "BF16", "weight_scale", (1, 0)),
    "float, blocks": (compressed("float", "float-quantized", "block", [32, 32]), "F8_E4M3", "F32", "weight_scale",
                      (32, 32)),
    "int, rows": (compressed("int", "int-quantized", "channel"), "I8", "F32", "weight_scale", (1, 0)),
    "int, one scale": (compressed("int", "int-quantized", "tensor"), "I8", "F16", "weight_scale", (0, 0)),
    "int, blocks": (compressed("int", "int-quantized", "block", [32, 32]), "I8", "F32", "weight_scale", (32, 32)),
}  # fmt: skip


def codes_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest of all codes that are numbers, for values between -1 and 1."""
    if dtype == "I8":
        return np.rint(values * 127).astype(np.int8)
    every = np.array([small(code, 4 if dtype == "F8_E4M3" else 5) for code in range(256)])
    known = np.flatnonzero(np.isfinite(every))
    known = known[np.argsort(every[known], kind="stable")]
    middles = (every[known][1:] + every[known][:-1]) / 2
    return known[np.searchsorted(middles, values)].astype(np.uint8)


def quantized(name: str, values: np.ndarray) -> tuple[dict[str, Typed], np.ndarray]:
    """A matrix's tensors by the last part of their names, and what the format's formula makes of them."""
    _, dtype, scale_type, part, block = FORMS[name]
    rows, columns = (length or whole for length, whole in zip(block, values.shape, strict=True))
    high, wide = -(-values.shape[0] // rows), -(-values.shape[1] // columns)
    scale, at = np.empty((high, wide), np.float32), np.empty(values.shape, np.float32)
    for i in range(high):
        for j in range(wide):
            place = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scale[i, j] = np.abs(values[place]).max()
    bits = scale.view(np.uint32) & np.uint32(0xFFFF0000)  # so that BF16 holds it, and F16 nearly
    scale = bits.view(np.float32).astype(np.float16).astype(np.float32)
    for i in range(high):
        for j in range(wide):
            at[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns] = scale[i, j]
    codes = codes_of(np.clip(values / at, -1, 1), dtype)
    made = codes.astype(np.float32)
    if dtype != "I8":
        made = np.array([small(code, 4 if dtype == "F8_E4M3" else 5) for code in range(256)], np.float32)[codes]
    stored = {"F32": scale, "F16": scale.astype(np.float16), "BF16": (scale.view(np.uint32) >> 16).astype(np.uint16)}
    shaped = stored[scale_type].reshape(() if block == (0, 0) else (high, wide))
    return {"weight": (dtype, codes), part: (scale_type, shaped)}, made * at


def checkpoint(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Writes a tiny llama whose layers are quantized; gives the floats that they stand for."""
    return write_checkpoint(folder, FORMS[name][0], lambda _, values: quantized(name, values))


@pytest.mark.parametrize("name", FORMS)
def test_a_matrix_is_what_its_formula_says(name: str, tmp_path: Path) -> None:
    floats = checkpoint(tmp_path / "c", name)
    source = opened(tmp_path / "c")
    for matrix in (f"{NAME}.weight", "model.layers.0.self_attn.k_proj.weight"):
        expected = floats[matrix]
        source.check(matrix, expected.shape)
        packing = source.packing(matrix)
        assert packing is not None
        assert packing.bits == 8
        for start, stop in ((0, len(expected)), (3, 21)):
            rows = source.rows(matrix, start, stop)
            np.testing.assert_array_equal(rows, expected[start:stop])
            stored = dequantize(source.packed(matrix, start, stop), packing, expected.shape[1])
            if name in ("int, rows", "int, one scale"):
                np.testing.assert_array_equal(stored, rows)
            else:
                # a step of 8 bits at most, of 128 to the largest, whose float16 may be wrong by a sixteenth of a step
                assert np.abs(stored - rows).max() <= np.abs(rows).max() / 128 * (1 + 1 / 16)
    source.close()


@pytest.mark.parametrize("name", ["fp8", "int, rows"])
def test_a_model_is_exported_in_8_bits(name: str, tmp_path: Path) -> None:
    """Integers as they are; floats near the same export in 32 bits."""
    checkpoint(tmp_path / "c", name)
    eight = open_package(convert(tmp_path / "c", tmp_path / "eight", Recipe(exact=True), verify=name == "fp8"))
    floats = open_package(convert(tmp_path / "c", tmp_path / "floats", Recipe(bits=32)))
    entries = eight.manifest["quantization"]
    assert isinstance(entries, dict)
    kept = Packing(bits=8, group_size=128, scale_bits=32)
    assert entries["layers.0.mlp.up"] == (kept if name == "int, rows" else Packing(bits=8)).entry
    assert entries["head"]["bits"] == 16
    tokens = list(range(20, 60))
    found, expected = (ReferenceEngine(package).open().feed_all(tokens) for package in (eight, floats))
    if name == "fp8":
        assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    else:
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 10), st.integers(1, 41), st.integers(0, 99))
def test_blocks_of_any_size_cover_a_matrix(rows: int, columns: int, high: int, wide: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    codes = random.integers(-127, 128, (rows, columns)).astype(np.int8)
    scale = random.standard_normal((-(-rows // high), -(-columns // wide))).astype(np.float32)
    raw = {"I8": codes.tobytes(), "F32": scale.tobytes()}
    weight, scales = (Tensor(Path("none"), kind, values.shape, 0, values.nbytes)
                      for kind, values in (("I8", codes), ("F32", scale)))  # fmt: skip
    matrix = ScaledMatrix("m.weight", weight, scales, (high, wide))
    matrix.check((rows, columns))
    start = int(random.integers(0, rows))
    found = matrix.rows(lambda tensor, at, count: bytearray(raw[tensor.dtype][at : at + count]), start, rows)
    for r in range(start, rows):
        for c in range(columns):
            assert found[r - start, c] == np.float32(codes[r, c]) * scale[r // high, c // wide]


@pytest.mark.parametrize(("part", "value", "message"), [
    ("weight_scale_inv", None, r"no 'weight_scale_inv' or 'weight_scale' of '.*down_proj\.weight', which is F8_E4M3"),
    ("weight_scale_inv", ("F32", np.ones((1, 2), np.float32)), r"is F32 \[1, 2\]; .* BF16 or F32 \[2, 2\]"),
    ("weight_scale_inv", ("I32", np.ones((2, 2), np.int32)), r"is I32 \[2, 2\]; expected"),
    ("weight_scale_inv", ("F32", np.full((2, 2), np.inf, np.float32)), "not finite"),
    ("weight", ("F8_E4M3", np.zeros((64, 95), np.uint8)), r"is \[64, 95\]; config.json calls for \[64, 96\]"),
    ("weight", ("U8", np.zeros((64, 96), np.uint8)), "is U8; expected F16, BF16 or F32"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_named(part: str, value: Typed | None, message: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", "fp8")
    source = opened(tmp_path / "c")
    source.check(f"{NAME}.weight", (64, 96))
    source.close()
    kept: dict[str, Typed] = {}
    path = tmp_path / "c" / "model.safetensors"
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    for name, entry in json.loads(raw[8:begin]).items():
        first, last = (begin + at for at in entry["data_offsets"])
        size = (last - first) // max(math.prod(entry["shape"]), 1)
        kept[name] = entry["dtype"], np.frombuffer(raw[first:last], f"V{size}").reshape(entry["shape"])
    del kept[f"{NAME}.{part}"]
    if value is not None:
        kept[f"{NAME}.{part}"] = value
    write(path, kept)
    with pytest.raises(ExportError, match=message):
        convert(tmp_path / "c", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("config", "message"), [
    (FP8 | {"weight_block_size": [128]}, r"blocks of \[128\] weights; expected rows and columns"),
    (compressed("float", "float-quantized", "group"), "strategy 'group' in config.json"),
    (compressed("int", "int-quantized", "channel") | {"config_groups": {}}, "or none; expected one"),
])  # fmt: skip
def test_what_is_not_read_is_named(config: dict[str, object], message: str, tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "c", "llama", quantization_config=config)
    with pytest.raises(ExportError, match=message):
        convert(tmp_path / "c", tmp_path / "out")
