"""What --verify measures, and that it refuses a graph that computes something else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from embedllm.errors import ExportError
from embedllm.export import Recipe, verify
from embedllm.export.verify import MOST_KL, compare, verify_folder
from tests.support.decoder_cases import CASES, attention, plain
from tests.support.described import described_package

FLOAT16_KL = 1e-3  # nats


@pytest.fixture
def folder(tiny_package: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy that may be damaged; sharper logits than random weights give, as a trained model has them."""
    copy = tmp_path / "package"
    shutil.copytree(tiny_package("qwen3", Recipe()), copy)
    return copy


def change_attention(folder: Path, attribute: str, value: int) -> None:
    """Another value for one attribute of every attention, in the manifest's eyes too."""
    path = folder / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            kept = [a for a in node.attribute if a.name != attribute]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute(attribute, value)])
    path.write_bytes(model.SerializeToString())
    note_size(folder, path)


def note_size(folder: Path, path: Path) -> None:
    manifest = json.loads((folder / "embedllm.json").read_text())
    manifest["files"][path.name]["bytes"] = path.stat().st_size
    (folder / "embedllm.json").write_text(json.dumps(manifest))


def test_two_rows_are_compared_as_worked_by_hand() -> None:
    reference = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32))
    other = np.log(np.array([[0.5, 0.5], [0.75, 0.25]], np.float32))
    found = compare(reference, other)
    assert found.max_difference == pytest.approx(np.log(3), rel=1e-5)
    assert found.kl_mean == pytest.approx((0.25 * np.log(1 / 3) + 0.75 * np.log(3)) / 2, rel=1e-5)
    assert found.same_top == 0.5


def test_the_differences_go_into_the_manifest(folder: Path) -> None:
    results = verify_folder(folder)
    manifest = json.loads((folder / "embedllm.json").read_text())
    assert manifest["verification"] == results
    measured = results["model.onnx"]
    assert isinstance(measured, dict)
    assert 0 < measured["kl_mean"] < MOST_KL / 10
    assert "CUDA" in str(results["model.fp16.onnx"])


def test_the_float16_graph_of_a_model_without_norms_is_run_too(
    tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copytree(tiny_package("llama", Recipe()), tmp_path / "package")
    measured = verify_folder(tmp_path / "package")["model.fp16.onnx"]
    assert isinstance(measured, dict)
    assert 0 < measured["kl_mean"] < MOST_KL / 10


@pytest.mark.parametrize(
    ("attribute", "value"), [("do_rotary", 0), ("rotary_interleaved", 1), ("local_window_size", 1)]
)
def test_a_wrong_attention_is_refused(folder: Path, attribute: str, value: int) -> None:
    change_attention(folder, attribute, value)
    with pytest.raises(ExportError, match=r"'model.onnx' does not compute this model"):
        verify_folder(folder)


def test_a_graph_that_does_not_run_is_refused(folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(b"no graph")
    note_size(folder, path)
    with pytest.raises(ExportError, match=r"'model.onnx' does not run"):
        verify_folder(folder)


def test_the_graph_for_a_browsers_processor_is_run_with_its_floats_in_memory(folder: Path) -> None:
    measured = verify_folder(folder)["model.wasm.onnx"]
    assert isinstance(measured, dict)
    assert measured["max_difference"] < 2e-5
    assert not (folder / "weights.float32").exists()


def test_a_large_model_is_not_unpacked_for_that(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_MOST_FLOATS", 1000)
    measured = verify_folder(folder)["model.wasm.onnx"]
    assert isinstance(measured, dict)
    assert re.fullmatch(r"it reads the weights as floats, [\d,]+ bytes", str(measured["not_run"]))


PLAIN = attention(q_norm=None, k_norm=None)(plain())  # the CPU's attention does not norm q and k
TAKEN = [name for name, change in CASES.items() if change(PLAIN).attentions[0].q_norm is None]


@pytest.mark.parametrize("case", TAKEN)
def test_what_other_families_have_runs_in_float16(case: str, tmp_path: Path) -> None:
    """On the CPU, which has fewer kernels for float16 than a GPU."""
    decoder = CASES[case](PLAIN)
    place = described_package(tmp_path / "package", decoder, Recipe(bits=16), variant="generic-float16")
    measured = verify_folder(place)["model.fp16.onnx"]
    assert isinstance(measured, dict)
    assert measured["kl_mean"] < FLOAT16_KL
