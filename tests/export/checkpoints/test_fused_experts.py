"""Experts of a layer in one tensor: MXFP4 is read as the floats that it stands for, and refused when it is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.checkpoints.fused_experts import find_experts
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.rounding.quantize import quantize
from embedllm.hub.location import Location
from embedllm.package.package import WEIGHTS
from embedllm.package.packing import Packing, dequantize
from tests.support.families import FAMILIES, Tensors, make_checkpoint

if TYPE_CHECKING:
    from embedllm.types import F32

VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # of E2M1, table 5 of the specification


@contextmanager
def source_of(folder: Path, tensors: Tensors) -> Iterator[HuggingFaceSource]:
    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    source = HuggingFaceSource(Location(folder, folder.name))
    yield source
    source.close()


def rows_of(folder: Path, tensors: Tensors, stop: int) -> F32:
    """The first rows of the weights of 'e', whose tensors have these ends."""
    with source_of(folder, {f"e{end}": value for end, value in tensors.items()}) as source:
        return source.rows("e.weight", 0, stop)


def blocks_of(random: np.random.Generator, experts: int, rows: int, groups: int) -> Tensors:
    blocks = random.integers(0, 256, (experts, rows, groups, 16), dtype=np.uint8)
    return {"_blocks": blocks, "_scales": random.integers(117, 124, blocks.shape[:3], dtype=np.uint8)}


def test_a_block_is_read_by_hand_made_values(tmp_path: Path) -> None:
    """Every value and its negative: 16 nibbles twice, the earlier one in the low bits; scales of 1, 2 and 1/4."""
    pairs = np.array([low + 16 * high for low, high in zip(range(0, 16, 2), range(1, 16, 2), strict=True)] * 2)
    blocks = np.tile(pairs.astype(np.uint8), (1, 3, 1, 1))
    scales = np.array([[[127], [128], [125]]], np.uint8)
    found = rows_of(tmp_path / "a", {"_blocks": blocks, "_scales": scales}, 3)
    row = [*VALUES, *(-value for value in VALUES)] * 2
    assert found.tolist() == [row, [2 * value for value in row], [value / 4 for value in row]]


def test_experts_follow_each_other_row_by_row(tmp_path: Path) -> None:
    tensors = blocks_of(np.random.default_rng(0), 3, 10, 2)
    with source_of(tmp_path / "a", {f"e{end}": value for end, value in tensors.items()}) as source:
        source.check("e.weight", (30, 64))
        whole = source.rows("e.weight", 0, 30)
        assert np.array_equal(source.rows("e.weight", 7, 23), whole[7:23])
    one = rows_of(tmp_path / "b", {end: value[1:2] for end, value in tensors.items()}, 10)
    assert np.array_equal(one, whole[10:20])


def test_floats_are_turned_over_and_biases_laid_out_flat(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    with source_of(tmp_path / "a", {"e": values, "e_bias": values[:, 0]}) as source:
        source.check("e.weight", (8, 3))
        source.check("e.bias", (8,))
        assert np.array_equal(source.rows("e.weight", 1, 7), values.transpose(0, 2, 1).reshape(8, 3)[1:7])
        assert np.array_equal(source.rows("e.bias", 2, 6), values[:, 0].reshape(-1)[2:6])


BLOCKS, SCALES = np.zeros((2, 4, 1, 16), np.uint8), np.zeros((2, 4, 1), np.uint8)


@pytest.mark.parametrize(("tensors", "says"), [
    ({"e_blocks": BLOCKS}, "no tensor 'e_scales'"),
    ({"e_scales": SCALES}, "no tensor 'e_blocks'"),
    ({"e_blocks": BLOCKS[..., :8], "e_scales": SCALES}, r"blocks of U8 \[2, 4, 1, 8\] and scales of U8 \[2, 4, 1\]"),
    ({"e_blocks": BLOCKS, "e_scales": SCALES[:1]}, r"scales of U8 \[1, 4, 1\]; expected"),
    ({"e_blocks": BLOCKS[0], "e_scales": SCALES[0]}, r"blocks of U8 \[4, 1, 16\]"),
    ({"e_blocks": BLOCKS.astype(np.int8), "e_scales": SCALES}, "blocks of I8"),
    ({"e_blocks": BLOCKS, "e_scales": SCALES.astype(np.float32)}, "scales of F32"),
    ({"e_blocks": BLOCKS[:1], "e_scales": SCALES[:1]}, r"\[4, 32\] together; config.json calls for \[8, 32\]"),
    ({"e": BLOCKS[..., 0]}, "'e.weight' is U8; expected F16, BF16 or F32"),
    ({"e": np.zeros((8, 32), np.float32)}, r"'e.weight' is \[8, 32\]; expected .experts, columns, rows"),
    ({"e": np.zeros((2, 4, 32), np.float32)}, r"\[64, 4\] together; config.json calls for \[8, 32\]"),
    ({"other": SCALES}, "no tensor 'e.weight'"),
])  # fmt: skip
def test_what_does_not_fit_is_named(tensors: Tensors, says: str, tmp_path: Path) -> None:
    with source_of(tmp_path / "a", tensors) as source, pytest.raises(ExportError, match=says):
        source.check("e.weight", (8, 32))


@pytest.mark.parametrize(("shape", "says"), [((8,), r"'e.bias' is \[8\]"), ((2, 5), r"\[10\] together.*\[8\]")])
def test_biases_that_do_not_fit_are_named(shape: tuple[int, ...], says: str, tmp_path: Path) -> None:
    tensors = {"e_bias": np.zeros(shape, np.float32)}
    with source_of(tmp_path / "a", tensors) as source, pytest.raises(ExportError, match=says):
        source.check("e.bias", (8,))


def test_names_of_other_tensors_are_left_alone() -> None:
    assert find_experts({}, "lm_head.weight") is None
    assert find_experts({}, "norm") is None


@pytest.mark.parametrize("scale", [255, 254])
def test_a_scale_that_is_no_finite_number_is_not_stored(scale: int, tmp_path: Path) -> None:
    """255 is NaN; 254 times 6 is beyond float32."""
    blocks = np.full((1, 1, 1, 16), 0x77, np.uint8)
    rows = rows_of(tmp_path / "a", {"_blocks": blocks, "_scales": np.full((1, 1, 1), scale, np.uint8)}, 1)
    with pytest.raises(ExportError, match="not finite"):
        quantize(rows, Packing(bits=8))


@pytest.mark.parametrize("group", [16, 32])
def test_eight_bits_hold_mxfp4_exactly(group: int, tmp_path: Path) -> None:
    tensors = blocks_of(np.random.default_rng(1), 1, 64, 5)
    rows = rows_of(tmp_path / "a", tensors, 64)
    packing = Packing(bits=8, group_size=group)
    assert np.array_equal(dequantize(quantize(rows, packing), packing, 160), rows)


def test_other_weights_in_eight_bits_keep_the_whole_range() -> None:
    """A group has its largest value at 128 steps, also where all of its values are alike or 0."""
    rows = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    rows[:5], rows[5:9] = 1.25, 0
    found = quantize(rows, Packing(bits=8))
    assert (found.weight[9:].min(axis=-1) == 0).all()
    assert (found.weight[:5] == 0).all()
    assert (found.scale[:5] == np.float16(-1.25 / 128)).all()
    assert (found.scale[5:9] == 0).all()


@pytest.mark.peer
def test_blocks_are_those_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = blocks_of(np.random.default_rng(2), 2, 8, 3)
    expected = convert_moe_packed_tensors(*(torch.from_numpy(tensors[end].copy()) for end in ("_blocks", "_scales")),
                                          dtype=torch.float32)  # fmt: skip
    found = rows_of(tmp_path / "a", tensors, 16)
    assert np.array_equal(found.reshape(2, 8, 96), expected.numpy().transpose(0, 2, 1))


@pytest.mark.peer
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_a_checkpoint_in_mxfp4_gives_the_folder_of_its_floats(bits: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folders = {name: tmp_path / name for name in ("floats", "blocks")}
    for name, folder in folders.items():
        make_checkpoint(folder, FAMILIES["gpt_oss"])
        tensors = load_file(folder / "model.safetensors")
        for at in range(2):
            for part in ("gate_up_proj", "down_proj"):
                place = f"model.layers.{at}.mlp.experts.{part}"
                experts, columns, rows = tensors.pop(place).shape
                made = blocks_of(np.random.default_rng(10 * at + len(part)), experts, rows, columns // 32)
                packed = {f"{place}{end}": value for end, value in made.items()}
                floats = rows_of(tmp_path / "one", made, experts * rows)
                turned = floats.reshape(experts, rows, columns).transpose(0, 2, 1)
                tensors |= packed if name == "blocks" else {place: np.ascontiguousarray(turned)}
        save_file(tensors, folder / "model.safetensors")
    config = json.loads((folders["blocks"] / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folders["blocks"] / "config.json").write_text(json.dumps(config))
    recipe = Recipe(bits=bits, context=64)
    made_of = {name: convert(folder, tmp_path / f"{name} out", recipe) for name, folder in folders.items()}
    assert (made_of["blocks"] / WEIGHTS).read_bytes() == (made_of["floats"] / WEIGHTS).read_bytes()
