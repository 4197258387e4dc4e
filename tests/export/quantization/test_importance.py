"""Scales weighed by the inputs of each column: what is measured, what a search makes of it, and what an export does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from embedllm.cli.commands.export import _METHODS
from embedllm.cli.main import cli
from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.quantization.importance import (
    ENOUGH,
    excerpt,
    input_products,
    mean_products,
    spreads,
    weighing,
    weights,
)
from embedllm.export.recipe import METHODS
from embedllm.export.rounding.quantize import quantize
from embedllm.export.writing.plan import matrix_runs, plan
from embedllm.hub.location import locate
from embedllm.package.packing import Packing, dequantize, packings
from tests.support.calibration_texts import kl, logits, manifest, text, with_outliers
from tests.support.imatrix_files import imatrix, tensors_of
from tests.support.tiny import tiny_checkpoint

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.types import F32

WEIGHTED = Recipe(method="weighted", group_size=16)
WEIGHTED_32 = Recipe(method="weighted")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint", "llama")


def described(checkpoint: Path) -> tuple[HuggingFaceSource, Decoder]:
    source = HuggingFaceSource(locate(checkpoint, None))
    return source, describe(Config(source.config), None)


# The search


@given(seed=st.integers(0, 1000), symmetric=st.booleans(), group=st.sampled_from([16, 32]), columns=st.integers(1, 100))
def test_weights_that_are_all_alike_change_nothing(seed: int, symmetric: bool, group: int, columns: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((5, columns)).astype(np.float32)
    packing = Packing(bits=4, group_size=group, symmetric=symmetric)
    plain, weighed = (quantize(rows, packing, search=True, weights=one) for one in (None, np.ones(columns, np.float32)))
    assert np.array_equal(dequantize(plain, packing, columns), dequantize(weighed, packing, columns))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("columns", [64, 71])
def test_a_weighted_search_leaves_less_where_the_weights_are(symmetric: bool, columns: int) -> None:
    random = np.random.default_rng(5)
    rows = random.standard_normal((200, columns)).astype(np.float32)
    weighing = np.exp(random.standard_normal(columns) * 2).astype(np.float32)
    packing = Packing(bits=4, group_size=16, symmetric=symmetric)

    def lost(given: F32 | None) -> float:
        off = dequantize(quantize(rows, packing, search=True, weights=given), packing, columns) - rows
        return float((np.square(off) * weighing).sum())

    assert lost(weighing) < 0.9 * lost(None)


def test_each_column_has_its_own_weight_in_every_row_and_group() -> None:
    """The row as a whole and each of its groups alone give the same."""
    random = np.random.default_rng(6)
    rows, weighing = random.standard_normal((7, 48)).astype(np.float32), random.random(48).astype(np.float32) ** 4
    packing = Packing(bits=4, group_size=16)
    whole = dequantize(quantize(rows, packing, search=True, weights=weighing), packing, 48)
    for start in (0, 16, 32):
        here = slice(start, start + 16)
        alone = quantize(rows[2:5, here], packing, search=True, weights=weighing[here])
        assert np.array_equal(dequantize(alone, packing, 16), whole[2:5, here])


def test_inputs_that_are_not_finite_are_named() -> None:
    with pytest.raises(ExportError, match="the inputs of 'a matrix' are not finite"):
        mean_products(np.full((2, 4), np.inf, np.float32), 4, "a matrix")


# What is measured


def test_what_is_measured_are_the_mean_products_of_what_a_matrix_reads(tiny: Path) -> None:
    source, decoder = described(tiny)
    sequences = np.random.default_rng(0).integers(0, decoder.vocabulary, (3, 10))
    packing = plan(decoder, WEIGHTED).packing
    found = {name: one for names, one in input_products(source, decoder, packing, sequences) for name in names}
    source.close()
    from safetensors.numpy import load_file

    tensors = load_file(tiny / "model.safetensors")
    x = tensors["model.embed_tokens.weight"][sequences.reshape(-1)]
    norm = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-6)
    inputs = norm * tensors["model.layers.0.input_layernorm.weight"]
    assert np.allclose(found["layers.0.attention.k"], inputs.T @ inputs / len(inputs), rtol=1e-4, atol=1e-5)
    assert set(found) == {"head"} | {
        f"layers.{index}.{name}"
        for index in range(2)
        for name in (*(f"attention.{one}" for one in "qkvo"), "mlp.gate", "mlp.up", "mlp.down")
    }


def test_only_inputs_of_matrices_in_4_bits_are_measured(tiny: Path) -> None:
    source, decoder = described(tiny)
    sequences = np.random.default_rng(0).integers(0, decoder.vocabulary, (2, 5))
    packing = dict(plan(decoder, WEIGHTED).packing)
    names = {"layers.0.attention.k", "layers.1.mlp.down", "head"}
    packing |= {name: replace(packing[name], bits=8) for name in names}
    found = spreads(input_products(source, decoder, packing, sequences), decoder, packing)
    source.close()
    assert found.keys() == {linear.name for run in matrix_runs(decoder) for linear in run} - names - {"embedding"}


def test_an_excerpt_is_from_all_over_a_text() -> None:
    sequences = np.arange(200).reshape(100, 2)
    found = excerpt(sequences)
    assert len(found) == ENOUGH
    assert (found[0, 0], found[-1, 0]) == (0, 198)
    assert np.array_equal(excerpt(sequences[:5]), sequences[:5])


@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=40), st.floats(1e-3, 1e3))
def test_weights_are_around_one_whatever_the_inputs_are_measured_in(squares: list[float], unit: float) -> None:
    given = np.array(squares, np.float32)
    found = weighing(given)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert found.mean() == pytest.approx(1.1 if given.max() > 0 else 1, rel=1e-3)
    if given.max() > 1e-20:
        assert np.allclose(weighing(given * np.float32(unit)), found, rtol=1e-3)


def test_a_tied_table_counts_as_input_too() -> None:
    class Tied:
        tied = True

        class head:  # noqa: N801  # stands for a Linear
            name = "embedding"

    square = np.array([0, 1], np.float32)
    found = weights({"embedding": square, "layers.0.mlp.up": square}, Tied)  # type: ignore[arg-type]
    assert found["embedding"].tolist() == pytest.approx([0.3, 2.3])
    assert found["layers.0.mlp.up"].tolist() == pytest.approx([0.1, 2.1])


# An export


@pytest.mark.slow
def test_a_weighted_model_stays_nearer_on_other_text_of_the_kind(tiny: Path, tmp_path: Path) -> None:
    with_outliers(tiny, 8)
    _, decoder = described(tiny)
    other = np.random.default_rng(2).integers(0, decoder.vocabulary, (4, 100))
    base = logits(convert(tiny, tmp_path / "base", Recipe(bits=32)), other)
    searched = convert(tiny, tmp_path / "searched", Recipe(method="search", group_size=16))
    found = convert(tiny, tmp_path / "found", WEIGHTED, calibration=text(tmp_path / "text.jsonl"), verify=True)
    assert kl(base, logits(found, other)) < 0.9 * kl(base, logits(searched, other))
    assert (found / "weights.safetensors").stat().st_size == (searched / "weights.safetensors").stat().st_size


def test_without_a_text_the_built_in_one_is_read_as_by_default(tiny: Path, tmp_path: Path) -> None:
    named, default = (convert(tiny, tmp_path / name, recipe) for name, recipe in (("p", WEIGHTED_32), ("q", None)))
    found = manifest(default)
    assert found["calibration"] == manifest(named)["calibration"]
    assert found["calibration"]["text"] == "built-in"  # type: ignore[index]
    assert found["recipe"]["method"] == "weighted"  # type: ignore[index]
    assert (named / "weights.safetensors").read_bytes() == (default / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(("recipe", "method"), [
    (Recipe(bits=8), "search"),
    (Recipe(bits=16, head_bits=4), "weighted"),
    (Recipe(method="nearest"), "nearest"),
], ids=["nothing in 4 bits", "a head in 4 bits", "a method that is named"])  # fmt: skip
def test_the_default_method_reads_a_text_where_something_has_4_bits(
    recipe: Recipe, method: str, tiny: Path, tmp_path: Path
) -> None:
    found = manifest(convert(tiny, tmp_path / "p", recipe))
    assert found["recipe"]["method"] == method  # type: ignore[index]
    assert ("calibration" in found) == (method == "weighted")


def test_by_default_groups_of_4_bits_have_zero_points_where_every_runtime_reads_them(
    tiny: Path, tmp_path: Path
) -> None:
    """The tiny model's rows have 64 or 96 columns, 2 or 3 groups: CUDA and WebGPU misread an odd number."""
    for name, recipe, expected in (
        ("default", Recipe(), {"gate": False, "down": True}),
        ("8 bits", Recipe(bits=8), {"gate": True, "down": True}),
        ("named", Recipe(symmetric=True), {"gate": True, "down": True}),
        ("asymmetric", Recipe(symmetric=False), {"gate": False, "down": False}),
    ):
        packing = packings(manifest(convert(tiny, tmp_path / name, recipe)))
        assert {one: packing[f"layers.0.mlp.{one}"].symmetric for one in expected} == expected, name


def test_where_nothing_is_searched_there_is_nothing_to_weigh(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"at 8 bits there is no matrix of 4 bits, which the method 'weighted'"):
        convert(tiny, tmp_path / "p", Recipe(method="weighted", bits=8))


# An importance matrix


def test_an_importance_matrix_weighs_the_search_for_scales(tiny: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    from embedllm.package.package import sha256

    source, decoder = described(tiny)
    name, random = "layers.1.mlp.down", np.random.default_rng(0)
    squares = {one.name: random.random(one.columns, np.float32) ** 4 for run in matrix_runs(decoder) for one in run}
    matrix = imatrix(tmp_path / "imatrix.gguf", tensors_of(decoder, squares))
    rows = source.rows("model.layers.1.mlp.down_proj.weight", 0, decoder.hidden)
    source.close()
    package = convert(tiny, tmp_path / "p", WEIGHTED, importance=matrix)
    weighing = weights(squares, decoder)[name]
    expected = quantize(rows, packings(manifest(package))[name], search=True, weights=weighing)
    assert np.array_equal(load_file(package / "weights.safetensors")[f"{name}.weight"], expected.weight)
    assert manifest(package)["importance"] == {"file": "imatrix.gguf", "sha256": sha256(matrix)}
    assert "calibration" not in manifest(package)


def test_a_matrix_goes_with_a_mix_of_bits_whose_text_chooses_them(tiny: Path, tmp_path: Path) -> None:
    source, decoder = described(tiny)
    matrix = imatrix(tmp_path / "imatrix.gguf", tensors_of(decoder))
    source.close()
    narrow = convert(tiny, tmp_path / "narrow", Recipe(group_size=16))
    recipe = Recipe(method="weighted", group_size=16, size=(narrow / "weights.safetensors").stat().st_size + 20_000)
    found = manifest(convert(tiny, tmp_path / "p", recipe, importance=matrix, calibration=text(tmp_path / "t.jsonl")))
    assert {"importance", "calibration", "sensitivity"} <= found.keys()


@pytest.mark.parametrize(("recipe", "calibrated", "message"), [
    (Recipe(method="search"), False, "an importance matrix is for the method 'weighted', not for 'search'"),
    (Recipe(method="awq"), False, "not for 'awq'"),
    (WEIGHTED, True, "are mutually exclusive"),
])  # fmt: skip
def test_a_matrix_that_nobody_reads_is_refused(
    recipe: Recipe, calibrated: bool, message: str, tiny: Path, tmp_path: Path
) -> None:
    file = text(tmp_path / "text.jsonl") if calibrated else None
    with pytest.raises(ExportError, match=message):
        convert(tiny, tmp_path / "p", recipe, importance=tmp_path / "imatrix.gguf", calibration=file)


# The command


def test_the_command_has_every_method() -> None:
    assert list(METHODS) == _METHODS


def test_the_command_takes_an_importance_matrix(tiny: Path, tmp_path: Path) -> None:
    source, decoder = described(tiny)
    matrix = imatrix(tmp_path / "imatrix.gguf", tensors_of(decoder))
    source.close()
    call = ["export", str(tiny), str(tmp_path / "p"), "--importance", str(matrix), "--group", "16"]
    done = CliRunner().invoke(cli, call)
    assert done.exit_code == 0, done.output
    assert manifest(tmp_path / "p")["recipe"]["method"] == "weighted"  # type: ignore[index]


@pytest.mark.parametrize(("options", "message"), [
    (["--method", "gptq"], "an importance matrix is for the method 'weighted', not for 'gptq'"),
    (["--calibrate", "text.jsonl"], "are mutually exclusive"),
])  # fmt: skip
def test_the_command_refuses_a_matrix_that_nobody_reads(
    options: list[str], message: str, tiny: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(cli, ["export", str(tiny), str(tmp_path / "p"), "--importance", "x.gguf", *options])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())
