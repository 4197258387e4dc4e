"""Checkpoints of integers, each written here by its format's own rules: what they stand for, and are stored as."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from embedllm.package.packing import Packing, dequantize
from tests.support.quantized_folders import NAME, check_refused, opened
from tests.support.tiny import tiny_checkpoint

Tensors = dict[str, np.ndarray]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each nibble of a word


@dataclass(frozen=True, kw_only=True)
class Format:
    """A form of checkpoint; what can differ."""

    kind: str
    bits: int = 4
    group: int = 32
    symmetric: bool = False
    config: Mapping[str, Any]

    @property
    def said(self) -> dict[str, object]:
        key = "quantization" if self.kind == "mlx" else "quantization_config"
        return {key: dict(self.config)}


def gptq(bits: int = 4, group: int = 32, form: str = "gptq", *, symmetric: bool = False) -> Format:
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": form}
    return Format(kind="gptq", bits=bits, group=group, symmetric=symmetric, config=config)


def compressed(bits: int = 4, group: int = 32, *, symmetric: bool = True) -> Format:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "actorder": None,
               **({"strategy": "channel"} if group < 0 else {"strategy": "group", "group_size": group})}  # fmt: skip
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized",
              "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}}}  # fmt: skip
    return Format(kind="compressed", bits=bits, group=group, symmetric=symmetric, config=config)


def mlx(bits: int = 4, group: int = 32) -> Format:
    return Format(kind="mlx", bits=bits, group=group, config={"group_size": group, "bits": bits})


AWQ = Format(kind="awq", config={"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"})
GEMV = Format(kind="gemv", config={**AWQ.config, "version": "gemv"})
FORMATS = {
    "gptq": gptq(), "gptq, symmetric": gptq(symmetric=True), "gptq_v2": gptq(form="gptq_v2"), "gptq, 2 bits": gptq(2),
    "gptq, 3 bits": gptq(3), "gptq_v2, 3 bits": gptq(3, form="gptq_v2"), "gptq, 8 bits": gptq(8, symmetric=True),
    "gptq, whole rows": gptq(group=-1), "awq": AWQ, "awq, gemv": GEMV,
    "compressed": compressed(), "compressed, zero points": compressed(symmetric=False),
    "compressed, 8 bits": compressed(8), "compressed, whole rows": compressed(group=-1),
    "mlx": mlx(), "mlx, 8 bits": mlx(8), "mlx, 2 bits": mlx(2, 16),
}  # fmt: skip


def words(values: np.ndarray, bits: int, order: tuple[int, ...] = ()) -> np.ndarray:
    """Integers along the last axis, packed into words; order: which of them each part of the word holds."""
    if bits == 3:  # a row of bits, the lowest first, cut into words
        single = (values[..., None] >> np.arange(3) & 1).reshape(*values.shape[:-1], -1)
        single = np.pad(single, [(0, 0)] * (values.ndim - 1) + [(0, -single.shape[-1] % 32)])
        cut = single.reshape(*values.shape[:-1], -1, 32).astype(np.uint32) << np.arange(32, dtype=np.uint32)
        return cut.sum(axis=-1, dtype=np.uint32).view(np.int32)
    each = 32 // bits
    filled = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % each)])
    found = np.zeros((*filled.shape[:-1], filled.shape[-1] // each), np.uint32)
    for part, at in enumerate(order or range(each)):
        found |= filled[..., at::each].astype(np.uint32) << np.uint32(part * bits)
    return found.view(np.int32)


def quantized(
    form: Format, random: np.random.Generator, rows: int, columns: int, column: np.ndarray | None = None
) -> tuple[Tensors, np.ndarray]:
    """A matrix's tensors by the last part of their names, and what the format's formula makes of them.

    column: the group of each; None: those of a group lie together.
    """
    group = columns if form.group < 0 else form.group
    groups, levels = -(-columns // group), 1 << form.bits
    q = random.integers(0, levels, (rows, columns))
    low = 1 if form.kind == "gptq" and form.config["checkpoint_format"] == "gptq" else 0
    high = levels + low if form.bits < 8 else levels
    zero = np.full((rows, groups), levels // 2) if form.symmetric else random.integers(low, high, (rows, groups))
    scale = (random.uniform(0.5, 1, (rows, groups)) / levels / columns**0.5).astype(np.float16)
    in_order = column is None
    column = np.arange(columns) // group if column is None else column
    wide = scale.astype(np.float32)[:, column]
    floats = (q - zero[:, column]).astype(np.float32) * wide
    if form.kind == "gptq":
        return {"qweight": words(q, form.bits).T, "qzeros": words(zero.T - low, form.bits), "scales": scale.T,
                "g_idx": column.astype(np.int32)}, floats  # fmt: skip
    if form.kind == "awq":
        return {"qweight": words(q.T, 4, AWQ_ORDER), "qzeros": words(zero.T, 4, AWQ_ORDER), "scales": scale.T}, floats
    if form.kind == "gemv":  # of groups of 32, words of zero points come in fours
        more = [(0, 0), (0, -groups % 32)]
        return {"qweight": words(q, 4), "qzeros": words(np.pad(zero, more), 4), "scales": np.pad(scale, more)}, floats
    if form.kind == "compressed":
        zeros = {} if form.symmetric else {"weight_zero_point": words(zero.T, form.bits).T}
        zeros |= {} if in_order else {"weight_g_idx": column.astype(np.int32)}
        return {"weight_packed": words(q, form.bits), "weight_scale": scale, **zeros}, floats
    minimum = (random.standard_normal((rows, groups)) / 16).astype(np.float16)
    made = {"weight": words(q, form.bits).view(np.uint32), "scales": scale, "biases": minimum}
    return made, q.astype(np.float32) * wide + minimum.astype(np.float32)[:, column]


def checkpoint(
    folder: Path, form: Format, column: Callable[[str, int], np.ndarray | None] = lambda *_: None
) -> dict[str, np.ndarray]:
    """Writes a tiny llama whose layers are quantized, of MLX the tables, too; gives the floats that it stands for.

    column: the group of each column, by the matrix and how many it has; None: those of a group lie together.
    """
    tiny_checkpoint(folder, "llama", vocab_size=320)
    config, random = json.loads((folder / "config.json").read_text()), np.random.default_rng(5)
    (folder / "config.json").write_text(json.dumps(config | form.said))
    tensors, floats = load_file(folder / "model.safetensors"), Tensors()
    for name, values in list(tensors.items()):
        if values.ndim == 2 and ("_proj" in name or form.kind == "mlx"):
            rows, columns = values.shape
            made, floats[name] = quantized(form, random, rows, columns, column(name, columns))
            del tensors[name]
            base = name.removesuffix(".weight")
            tensors |= {f"{base}.{part}": np.ascontiguousarray(each) for part, each in made.items()}
        elif values.ndim == 2:
            tensors[name] = values.astype(np.float16)
    save_file(tensors, folder / "model.safetensors")
    return floats


@pytest.mark.parametrize("name", FORMATS)
def test_a_matrix_is_what_its_formula_says(name: str, tmp_path: Path) -> None:
    floats = checkpoint(tmp_path / "c", FORMATS[name])
    source = opened(tmp_path / "c")
    for matrix in (f"{NAME}.weight", "model.layers.0.self_attn.k_proj.weight"):
        expected = floats[matrix]
        source.check(matrix, expected.shape)
        packing = source.packing(matrix)
        assert packing is not None
        for start, stop in ((0, len(expected)), (3, 21)):
            np.testing.assert_array_equal(source.rows(matrix, start, stop), expected[start:stop])
            packed = source.packed(matrix, start, stop)
            np.testing.assert_array_equal(dequantize(packed, packing, expected.shape[1]), expected[start:stop])
    source.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gptq", "awq", "compressed", "mlx"])
def test_a_model_is_carried_over(name: str, tmp_path: Path) -> None:
    """And what is float beside it stays so, in 16 bits."""
    checkpoint(tmp_path / "c", FORMATS[name])
    carried = open_package(convert(tmp_path / "c", tmp_path / "carried", Recipe(exact=True), verify=True))
    floats = open_package(convert(tmp_path / "c", tmp_path / "floats", Recipe(bits=32)))
    quantization = carried.manifest["quantization"]
    assert isinstance(quantization, dict)
    assert quantization["layers.0.mlp.up"]["bits"] == (8 if name == "gptq" else 4)  # a zero point is 16
    assert quantization["head"]["bits"] == (4 if name == "mlx" else 16)
    tokens = list(range(20, 60))
    found, expected = (ReferenceEngine(package).open().feed_all(tokens) for package in (carried, floats))
    np.testing.assert_array_equal(found, expected)


def test_the_word_of_a_row_of_awq_worked_by_hand(tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", AWQ)
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    tensors[f"{NAME}.qweight"][5, 0] = 0x76543210
    tensors[f"{NAME}.qzeros"][:] = 0
    tensors[f"{NAME}.scales"][:] = 1
    save_file(tensors, tmp_path / "c" / "model.safetensors")
    source = opened(tmp_path / "c")
    assert source.rows(f"{NAME}.weight", 0, 8)[:, 5].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    source.close()


def test_three_words_of_3_bits_worked_by_hand(tmp_path: Path) -> None:
    """AutoGPTQ: 10 integers in a word and 2 bits of the next, 10 behind its third bit and one of the next, 10 more."""
    checkpoint(tmp_path / "c", gptq(3))
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    values = np.arange(32) * 5 % 8
    low = sum(int(value) << 3 * at for at, value in enumerate(values[:10])) | int(values[10] & 3) << 30
    middle = int(values[10] >> 2) | sum(int(value) << 3 * at + 1 for at, value in enumerate(values[11:21]))
    middle |= int(values[21] & 1) << 31
    high = int(values[21] >> 1) | sum(int(value) << 3 * at + 2 for at, value in enumerate(values[22:]))
    tensors[f"{NAME}.qweight"].view(np.uint32)[:3, 7] = low, middle, high
    tensors[f"{NAME}.qzeros"][:] = 0  # which are 1, for all
    tensors[f"{NAME}.scales"][:] = 1
    save_file(tensors, tmp_path / "c" / "model.safetensors")
    source = opened(tmp_path / "c")
    assert source.rows(f"{NAME}.weight", 7, 8)[0, :32].tolist() == (values - 1).tolist()
    packing = source.packing(f"{NAME}.weight")
    assert packing is not None
    assert packing.bits == 4
    source.close()


def test_a_zero_point_of_16_takes_8_bits(tmp_path: Path) -> None:
    """As GPTQ stores one less: its 15 is 16, and never 0."""
    checkpoint(tmp_path / "c", gptq(symmetric=True))
    source = opened(tmp_path / "c")
    assert source.packing(f"{NAME}.weight") == Packing(bits=4)
    source.close()
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    tensors[f"{NAME}.qzeros"][0, 0] |= 15
    save_file(tensors, tmp_path / "c" / "model.safetensors")
    source = opened(tmp_path / "c")
    assert source.packing(f"{NAME}.weight") == Packing(bits=8, symmetric=False)
    source.close()


@pytest.mark.parametrize(("config", "message"), [
    ({"quant_method": "gptq", "bits": 5, "group_size": 128}, "with bits 5 in config.json; expected 2 or 3 or 4 or 8"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "in groups of 48; expected"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin"}, "with .* 'marlin'"),
    ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"}, "'gemv_fast'"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}, "or none; expected one"),
    ({"quant_method": "aqlm"}, "already quantized"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized", "transform_config": {"config_groups": {}}},
     "turns what its matrices read"),
    ({"quant_method": "compressed-tensors", "format": "mxfp6-pack-quantized"}, "format 'mxfp6-pack-quantized'"),
])  # fmt: skip
def test_what_is_not_read_is_named(config: dict[str, object], message: str, tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "c", "llama", quantization_config=config)
    with pytest.raises(ExportError, match=message):
        convert(tmp_path / "c", tmp_path / "out")


@pytest.mark.parametrize(("part", "value", "message"), [
    ("scales", np.ones((2, 64), np.float16), r"'scales' of '.*' is F16 \[2, 64\]; expected .* \[3, 64\]"),
    ("scales", None, "has no 'scales' of"),
    ("qzeros", np.zeros((3, 7), np.int32), r"'qzeros' of '.*' is I32 \[3, 7\]; expected .* \[3, 8\]"),
    ("qweight", np.zeros((12, 8), np.int16), r"is I16 \[12, 8\]; expected rows of 32-bit integers"),
    ("qweight", np.zeros((11, 64), np.int32), r"expected"),
    ("g_idx", np.full(96, 3, np.int32), "is of the group 3; expected 0 to 2"),
    ("scales", np.full((3, 64), np.nan, np.float16), "not finite"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_named(part: str, value: np.ndarray | None, message: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", gptq())
    check_refused(tmp_path / "c", part, value, message)
