"""Checkpoints of HQQ, written here by its own rules: what they stand for, and are stored as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from embedllm.package.packing import dequantize
from tests.support.quantized_folders import NAME, check_refused, opened
from tests.support.tiny import tiny_checkpoint

Tensors = dict[str, np.ndarray]
FORMS = {"4 bits": (4, 32, 1), "2 bits": (2, 16, 1), "8 bits": (8, 32, 1), "1 bit": (1, 32, 1), "axis 0": (4, 64, 0)}


def text(words: str) -> np.ndarray:
    return np.frombuffer(words.encode(), np.uint8)


def quantized(random: np.random.Generator, shape: tuple[int, int], form: str) -> tuple[Tensors, np.ndarray]:
    """A matrix's tensors by the last part of their names, and (q - zero) * scale of its table in float64."""
    bits, group, axis = FORMS[form]
    count = shape[0] * shape[1] // group
    q = random.integers(0, 1 << bits, (count, group) if axis == 1 else (group, count)).astype(np.uint8)
    zero = random.uniform(0, (1 << bits) - 1, (count, 1) if axis == 1 else (1, count)).astype(np.float16)
    scale = (random.uniform(0.5, 1, zero.shape) / (1 << bits) / 8).astype(np.float16)
    parts = np.split(q, 8 // bits)
    words = np.zeros_like(parts[0])
    for part in parts:
        words = (words.astype(np.uint16) << bits).astype(np.uint8) | part
    made = {"W_q": words, "scale": scale, "zero": zero, "packing": text(f"{bits}bit_u8"),
            "view_as_float": np.zeros((), np.uint8), "axis": np.array(axis, np.int32),
            "group_size": np.array(group, np.int32), "nbits": np.array(bits, np.int32),
            "shape": np.array(shape, np.int64)}  # fmt: skip
    floats = (q.astype(np.float64) - zero.astype(np.float64)) * scale.astype(np.float64)
    return made, floats.astype(np.float32).reshape(shape)


def checkpoint(folder: Path, form: str) -> Tensors:
    """Writes a tiny llama whose layers are quantized; gives the floats that they stand for."""
    tiny_checkpoint(folder, "llama", vocab_size=320, quantization_config={"quant_method": "hqq"})
    tensors: Tensors = {}
    floats: Tensors = {}
    random = np.random.default_rng(6)
    for name, values in load_file(folder / "model.safetensors").items():
        if "_proj" in name:
            made, floats[name] = quantized(random, values.shape, form)
            tensors |= {f"{name.removesuffix('.weight')}.{part}": each for part, each in made.items()}
        else:
            tensors[name] = values.astype(np.float16)
    save_file(tensors, folder / "model.safetensors")
    return floats


@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_is_what_its_formula_says(form: str, tmp_path: Path) -> None:
    floats = checkpoint(tmp_path / "c", form)
    source = opened(tmp_path / "c")
    for matrix in (f"{NAME}.weight", "model.layers.0.self_attn.k_proj.weight"):
        expected = floats[matrix]
        source.check(matrix, expected.shape)
        packing = source.packing(matrix)
        assert packing is not None
        assert packing.has_minimum == (form != "axis 0")
        for start, stop in ((0, len(expected)), (3, 21)):
            np.testing.assert_array_equal(source.rows(matrix, start, stop), expected[start:stop])
            stored = dequantize(source.packed(matrix, start, stop), packing, expected.shape[1])
            if packing.has_minimum:
                np.testing.assert_array_equal(stored, expected[start:stop])
            else:  # a step of 8 bits, of 128 to the largest, whose float16 may be wrong by a sixteenth of a step
                assert np.abs(stored - expected[start:stop]).max() <= np.abs(expected).max() / 128 * (1 + 1 / 16)
    source.close()


def test_a_model_is_carried_over(tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", "4 bits")
    carried = open_package(convert(tmp_path / "c", tmp_path / "carried", Recipe(exact=True), verify=True))
    floats = open_package(convert(tmp_path / "c", tmp_path / "floats", Recipe(bits=32)))
    tokens = list(range(20, 60))
    found, expected = (ReferenceEngine(package).open().feed_all(tokens) for package in (carried, floats))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("part", "value", "message"), [
    ("packing", text("3bit_32"), "packed as '3bit_32'"),
    ("packing", None, r"no whole numbers '.*down_proj\.packing'"),
    ("view_as_float", np.ones((), np.uint8), r"with view_as_float \[1\]"),
    ("axis", np.array(2, np.int32), r"along axis \[2\]; expected"),
    ("shape", np.array([96, 64], np.int64), r"is \[96, 64\]; config.json calls for \[64, 96\]"),
    ("group_size", np.array(5, np.int32), "groups of 5 do not divide"),
    ("scale", None, "no 'scale' of"),
    ("zero", np.zeros(3, np.float16), r"'zero' of .* is F16 \[3\]; expected .* 192 of them"),
    ("W_q", np.zeros((96, 31), np.uint8), r"is U8 \[96, 31\]; expected 3072 bytes"),
    ("scale", np.full(192, np.nan, np.float16), "not finite"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_named(part: str, value: np.ndarray | None, message: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", "4 bits")
    check_refused(tmp_path / "c", part, value, message)
