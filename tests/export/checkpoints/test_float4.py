"""Checkpoints of 4-bit floats with scales, NVFP4 and MXFP4, written here by their formats' own rules."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.checkpoints.quantized.fp4 import Float4Matrix
from embedllm.files.safetensors_header import Tensor
from embedllm.package.package import open_package
from embedllm.package.packing import Packing, dequantize
from tests.export.checkpoints.test_scaled import small
from tests.support.quantized_folders import NAME, Typed, opened, write_checkpoint
from tests.support.tiny import tiny_checkpoint

E4M3 = np.array([small(code, 4) for code in range(256)], np.float32)


def compressed(form: str, group: int, **others: object) -> dict[str, object]:
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": group, **others}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


FORMS: dict[str, dict[str, object]] = {
    "compressed-tensors, NVFP4": compressed("nvfp4-pack-quantized", 16),
    "ModelOpt, NVFP4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "compressed-tensors, MXFP4": compressed("mxfp4-pack-quantized", 32),
}


def float4(code: int) -> float:
    """What a code of 4 bits stands for, by the words of OCP's Microscaling: 2 bits of exponent, 1 of mantissa."""
    exponent, mantissa = code >> 1 & 3, code & 1
    value = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -value if code & 8 else value


def quantized(form: str, values: np.ndarray) -> tuple[dict[str, Typed], np.ndarray]:
    """A matrix's tensors by the last part of their names, and what the format's formula makes of them in float32."""
    group = 32 if "MXFP4" in form else 16
    largest = np.abs(values).reshape(len(values), -1, group).max(axis=2).astype(np.float32) / 6
    tensors: dict[str, Typed] = {}
    if group == 32:
        exponents = np.ceil(np.log2(np.maximum(largest, 1e-9))).astype(np.int32)
        stored: Typed = "U8", (exponents + 127).astype(np.uint8)
        scale = np.ldexp(np.float32(1), exponents)
    else:
        whole = np.float32(largest.max() / 440)
        codes = np.abs(E4M3[:127] - (largest / whole)[..., None]).argmin(axis=2).astype(np.uint8)
        stored = "F8_E4M3", codes
        if "ModelOpt" in form:
            tensors["weight_scale_2"] = "F32", np.array(whole)
            scale = E4M3[codes] * whole
        else:
            inverse = np.array([1 / whole], np.float32)
            tensors["weight_global_scale"] = "F32", inverse
            scale = E4M3[codes] / inverse
    at = np.repeat(scale, group, axis=1)
    every = np.array([float4(code) for code in range(16)], np.float32)
    nearest = np.abs(every - (values / np.maximum(at, 1e-30))[..., None]).argmin(axis=2).astype(np.uint8)
    packed = nearest[:, ::2] | nearest[:, 1::2] << 4
    name = "weight" if "ModelOpt" in form else "weight_packed"
    return tensors | {name: ("U8", packed), "weight_scale": stored}, every[nearest] * at


def checkpoint(folder: Path, form: str, **spoilt: Typed | None) -> dict[str, np.ndarray]:
    """Writes a tiny llama whose layers are quantized; gives the floats that they stand for. spoilt: parts of NAME."""

    def stored(base: str, values: np.ndarray) -> tuple[dict[str, Typed], np.ndarray]:
        made, floats = quantized(form, values)
        changed = {**made, **spoilt} if base == NAME else made
        return {part: each for part, each in changed.items() if each is not None}, floats

    return write_checkpoint(folder, FORMS[form], stored)


@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_is_what_its_formula_says_and_stored_so(form: str, tmp_path: Path) -> None:
    floats = checkpoint(tmp_path / "c", form)
    source = opened(tmp_path / "c")
    for matrix in (f"{NAME}.weight", "model.layers.0.self_attn.k_proj.weight"):
        expected = floats[matrix]
        source.check(matrix, expected.shape)
        kept = Packing(bits=8, group_size=32 if "MXFP4" in form else 16, scale_bits=32)
        assert source.packing(matrix) == kept
        for start, stop in ((0, len(expected)), (3, 21)):
            np.testing.assert_array_equal(source.rows(matrix, start, stop), expected[start:stop])
            stored = dequantize(source.packed(matrix, start, stop), kept, expected.shape[1])
            np.testing.assert_array_equal(stored, expected[start:stop])
    source.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_carried_over_and_runs(form: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", form)
    kept = open_package(convert(tmp_path / "c", tmp_path / "kept", verify=True))
    floats = open_package(convert(tmp_path / "c", tmp_path / "floats", Recipe(bits=32)))
    tokens = list(range(20, 60))
    found, expected = (ReferenceEngine(package).open().feed_all(tokens) for package in (kept, floats))
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 3), st.sampled_from([16, 32]), st.integers(0, 99))
def test_any_bytes_are_read_by_the_formula(rows: int, groups: int, group: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    packed = random.integers(0, 256, (rows, groups * group // 2), np.uint8)
    scales = random.integers(0, 255 if group == 32 else 127, (rows, groups), np.uint8)  # no NaN among them
    whole = np.float32(random.uniform(0.001, 10))
    raw = {"weight": packed.tobytes(), "scale": scales.tobytes(), "whole": whole.tobytes()}

    def tensor(part: str, dtype: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(Path(part), dtype, shape, 0, len(raw[part]))

    matrix = Float4Matrix(name="m", group=group, weight=tensor("weight", "U8", packed.shape),
                          scale=tensor("scale", "U8" if group == 32 else "F8_E4M3", scales.shape),
                          whole=tensor("whole", "F32", (1,)), divides=False)  # fmt: skip
    matrix.check((rows, groups * group))
    start = int(random.integers(0, rows))
    found = matrix.rows(lambda each, at, count: bytearray(raw[each.file.name][at : at + count]), start, rows)
    for r in range(start, rows):
        for c in range(groups * group):
            code = int(packed[r, c // 2]) >> 4 * (c % 2) & 15
            exponent = int(scales[r, c // group])
            scale = math.ldexp(1, exponent - 127) if group == 32 else small(exponent, 4) * np.float32(whole)
            with np.errstate(over="ignore"):  # the largest scale of MXFP4 is 2 ** 127
                assert found[r - start, c] == np.float32(float4(code)) * np.float32(scale)


@pytest.mark.parametrize(("form", "spoilt", "message"), [
    ("ModelOpt, NVFP4", {"weight_scale": None}, "no scale of '.*down_proj"),
    ("ModelOpt, NVFP4", {"weight_scale_2": None}, "no scale of all of '.*down_proj"),
    ("ModelOpt, NVFP4", {"weight_scale": ("F32", np.ones((64, 6), np.float32))}, r"F32 \[64, 6\]; expected F8_E4M3"),
    ("ModelOpt, NVFP4", {"weight": ("U8", np.zeros((64, 47), np.uint8))}, "has 94 columns; expected a multiple of 16"),
    ("ModelOpt, NVFP4", {"weight_scale_2": ("F32", np.array(np.inf, np.float32))}, "not finite"),
    ("compressed-tensors, MXFP4", {"weight_scale": ("U8", np.full((64, 3), 255, np.uint8))}, "not finite"),
    ("compressed-tensors, MXFP4", {"weight_scale": ("U8", np.ones((64, 6), np.uint8))}, r"expected U8 \[64, 3\]"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    form: str, spoilt: dict[str, Typed | None], message: str, tmp_path: Path
) -> None:
    checkpoint(tmp_path / "c", form, **spoilt)
    with pytest.raises(ExportError, match=message):
        convert(tmp_path / "c", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("config", "message"), [
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ' .* expected 'FP8' or 'NVFP4'"),
    (compressed("nvfp4-pack-quantized", 32), "group_size 32"),
    (compressed("mxfp4-pack-quantized", 32, symmetric=False), "symmetric False"),
])  # fmt: skip
def test_what_is_not_read_is_named(config: dict[str, object], message: str, tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "c", "llama", quantization_config=config)
    with pytest.raises(ExportError, match=message):
        convert(tmp_path / "c", tmp_path / "out")
