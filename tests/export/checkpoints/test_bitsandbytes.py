"""Checkpoints of bitsandbytes, written here by its own rules: what they stand for, and are stored as."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, convert
from embedllm.export.checkpoints.quantized.bitsandbytes import CodedMatrix
from embedllm.files.safetensors_header import Tensor
from embedllm.package.package import open_package
from embedllm.package.packing import Packing, dequantize
from tests.support.quantized_folders import NAME, check_refused, opened
from tests.support.tiny import tiny_checkpoint

Tensors = dict[str, np.ndarray]
# a sign and 3 bits, in the order of their codes: 0, 1/16 of 1, 8, 12, 4, 6, 2 and 3 twelfths
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32) / np.float32(12)
NF4 = np.array([-1.0, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.07958030,
                0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0], np.float32)  # fmt: skip
KINDS = {"nf4": (NF4, False), "fp4": (FP4, False), "nf4, nested": (NF4, True)}


def coded(
    kind: str, random: np.random.Generator, shape: tuple[int, int], block: int = 64
) -> tuple[Tensors, np.ndarray]:
    """A matrix's tensors by what stands behind its name, and what they stand for, value by value."""
    table, nested = KINDS[kind]
    count = shape[0] * shape[1]
    codes = random.integers(0, 16, count).astype(np.uint8)
    blocks = -(-count // block)
    state: dict[str, object] = {"quant_type": kind[:3], "blocksize": block, "dtype": "bfloat16", "shape": list(shape)}
    largest = random.uniform(0.1, 0.3, blocks).astype(np.float32)
    made: Tensors = {"absmax": largest, "quant_map": table}
    if nested:
        names = np.linspace(-1, 1, 256).astype(np.float32)
        each = random.integers(0, 256, blocks).astype(np.uint8)
        scale = random.uniform(0.01, 0.05, -(-blocks // 16)).astype(np.float32)
        state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.123}
        made |= {"absmax": each, "nested_absmax": scale, "nested_quant_map": names}
        largest = np.array([names[each[at]] * scale[at // 16] + np.float32(0.123) for at in range(blocks)], np.float32)
    floats = np.array([table[code] * largest[at // block] for at, code in enumerate(codes)], np.float32)
    halves = np.append(codes, np.zeros(count % 2, np.uint8)).reshape(-1, 2)
    made[""] = (halves[:, 0] * np.uint8(16) + halves[:, 1]).reshape(-1, 1)
    made[f"quant_state.bitsandbytes__{kind[:3]}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return made, floats.reshape(shape)


def int8(values: np.ndarray) -> tuple[Tensors, np.ndarray]:
    """LLM.int8(): tensors by what stands behind the module's name."""
    largest = np.abs(values).max(axis=1)
    codes = np.rint(values / largest[:, None] * 127).astype(np.int8)
    made = {"weight": codes, "SCB": largest, "weight_format": np.zeros((), np.uint8)}
    return made, (codes.astype(np.float64) * largest[:, None] / 127).astype(np.float32)


def checkpoint(folder: Path, kind: str) -> dict[str, np.ndarray]:
    """Writes a tiny llama whose layers are quantized; gives the floats that they stand for."""
    said = {"quant_method": "bitsandbytes", "load_in_4bit": kind != "int8", "load_in_8bit": kind == "int8"}
    tiny_checkpoint(folder, "llama", vocab_size=320, quantization_config=said)
    tensors: Tensors = {}
    floats: Tensors = {}
    random = np.random.default_rng(4)
    for name, values in load_file(folder / "model.safetensors").items():
        if "_proj" not in name:
            tensors[name] = values.astype(np.float16)
        elif kind == "int8":
            made, floats[name] = int8(values.astype(np.float32))
            tensors |= {f"{name.removesuffix('.weight')}.{part}": each for part, each in made.items()}
        else:
            made, floats[name] = coded(kind, random, values.shape)
            tensors |= {f"{name}.{part}".rstrip("."): each for part, each in made.items()}
    save_file(tensors, folder / "model.safetensors")
    return floats


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_is_what_its_formula_says(kind: str, tmp_path: Path) -> None:
    floats = checkpoint(tmp_path / "c", kind)
    source = opened(tmp_path / "c")
    for matrix in (f"{NAME}.weight", "model.layers.0.self_attn.k_proj.weight"):
        expected = floats[matrix]
        source.check(matrix, expected.shape)
        assert source.packing(matrix) == Packing(bits=8)
        for start, stop in ((0, len(expected)), (3, 21)):
            np.testing.assert_array_equal(source.rows(matrix, start, stop), expected[start:stop])
            stored = dequantize(source.packed(matrix, start, stop), Packing(bits=8), expected.shape[1])
            # a step of 8 bits at most, of 128 to the largest, whose float16 may be wrong by a sixteenth of a step
            assert np.abs(stored - expected[start:stop]).max() <= np.abs(expected).max() / 128 * (1 + 1 / 16)
    source.close()


def test_rows_of_integers_are_carried_over(tmp_path: Path) -> None:
    floats = checkpoint(tmp_path / "c", "int8")
    source = opened(tmp_path / "c")
    for start, stop in ((0, 64), (3, 21)):
        rows, packing = source.rows(f"{NAME}.weight", start, stop), source.packing(f"{NAME}.weight")
        assert packing is not None
        assert packing == Packing(bits=8, group_size=128, scale_bits=32)
        # float32 is rounded once for 1/127, for the scale and for the product: bitsandbytes rounds in another order
        np.testing.assert_allclose(rows, floats[f"{NAME}.weight"][start:stop], rtol=2.0**-22)
        np.testing.assert_array_equal(dequantize(source.packed(f"{NAME}.weight", start, stop), packing, 96), rows)
    source.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4, nested", "int8"])
def test_a_model_is_exported_in_8_bits(kind: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", kind)
    eight = open_package(convert(tmp_path / "c", tmp_path / "eight", Recipe(exact=True), verify=kind == "int8"))
    floats = open_package(convert(tmp_path / "c", tmp_path / "floats", Recipe(bits=32)))
    tokens = list(range(20, 60))
    found, expected = (ReferenceEngine(package).open().feed_all(tokens) for package in (eight, floats))
    if kind == "int8":
        np.testing.assert_array_equal(found, expected)
    else:
        assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@settings(max_examples=15)
@given(st.sampled_from(list(KINDS)), st.integers(1, 9), st.integers(1, 41), st.integers(1, 70), st.integers(0, 99))
def test_blocks_run_on_from_row_to_row(kind: str, rows: int, columns: int, block: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    made, floats = coded(kind, random, (rows, columns), block)
    kinds = {np.dtype(np.uint8): "U8", np.dtype(np.float32): "F32"}
    tensors = {part: Tensor(Path(part), kinds[values.dtype], values.shape, 0, values.nbytes)
               for part, values in made.items()}  # fmt: skip
    nested = "nested_absmax" in made
    matrix = CodedMatrix(name="m.weight", shape=(rows, columns), weight=tensors[""], tensors=tensors, block=block,
                         nested_block=16 if nested else 0, offset=0.123 if nested else 0)  # fmt: skip
    matrix.check((rows, columns))
    raw = {Path(part): values.tobytes() for part, values in made.items()}
    start = int(random.integers(0, rows))
    found = matrix.rows(lambda tensor, at, count: bytearray(raw[tensor.file][at : at + count]), start, rows)
    np.testing.assert_array_equal(found, floats[start:])


STATE = "weight.quant_state.bitsandbytes__nf4"


def stated(words: bytes) -> np.ndarray:
    return np.frombuffer(words, np.uint8)


@pytest.mark.parametrize(("kind", "part", "value", "message"), [
    ("nf4", "weight.absmax", None, r"no '.*down_proj\.weight\.absmax'"),
    ("nf4", STATE, None, r"no '.*weight\.quant_state\.bitsandbytes__nf4' \(or fp4\)"),
    ("nf4", STATE, stated(b'{"shape": [64]}'), "quant_state' is not understood"),
    ("nf4", STATE, stated(b'{"shape": [64, 96], "blocksize": 0}'), "numbers above 0"),
    ("nf4, nested", STATE, stated(b'{"shape": [64, 96], "blocksize": 64, "nested_blocksize": 16, '
                                  b'"nested_offset": 1e999}'), "offset of float32"),
    ("int8", "weight", np.zeros((64, 96), np.float16), r"is F16 \[64, 96\]; expected rows and columns of"),
    ("nf4", "weight", np.zeros((5, 1), np.uint8), r"has 5 bytes; \[64, 96\] of 4 bits take 3072"),
    ("nf4, nested", "weight.nested_absmax", np.zeros(2, np.float32), r"is F32 \[2\]; expected F32 \[6\]"),
    ("nf4", "weight.absmax", np.full(96, np.nan, np.float32), "not finite"),
    ("int8", "weight_format", np.ones((), np.uint8), "in an order of its own"),
    ("int8", "SCB", np.zeros(63, np.float32), r"is F32 \[63\]; expected"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    kind: str, part: str, value: np.ndarray | None, message: str, tmp_path: Path
) -> None:
    checkpoint(tmp_path / "c", kind)
    check_refused(tmp_path / "c", part, value, message)
