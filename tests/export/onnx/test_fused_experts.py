"""Experts as one operator: what the reference computes, over the weights file as it is, where the operator fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from embedllm.backends.devices.registry import open_engine
from embedllm.backends.gpu import cuda
from embedllm.backends.gpu.cuda import gathers_tokens
from embedllm.backends.gpu.cuda_driver import Gpu
from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.backends.ort.engine import OrtEngine, unsupported_graph
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError
from embedllm.export import Recipe
from embedllm.export.graphs import variants, write_variant
from embedllm.export.writing.plan import plan
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.weights import Linear
from embedllm.package.graph_variants import FLOAT16, FLOAT32, QMOE, QMOE_FLOAT16
from embedllm.package.package import Package, open_package
from embedllm.package.tensors import mlps
from tests.support.decoder_cases import VOCABULARY, plain
from tests.support.described import described_package
from tests.support.mixtures import DECODERS, mixture
from tests.support.openings import device

CLOSE = 1e-4  # of the spread of the logits; measured up to 4e-6: the order of float32 sums differs
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY, 21)]


RECIPES = {
    "symmetric": Recipe(method="nearest", exact=True),
    "zero points": Recipe(method="nearest", symmetric=False, exact=True),
    "odd zero points": Recipe(method="nearest", symmetric=False, exact=True, group_size=64),
}


def package_of(decoder: Decoder, folder: Path, recipe: Recipe, variant: str = QMOE.name) -> Package:
    return open_package(described_package(folder, decoder, recipe, variant=variant))


def operators(package: Package) -> Counter[str]:
    (listed,) = package.graphs
    graph = onnx.load(package.folder / listed.file, load_external_data=False).graph
    return Counter(node.op_type for node in graph.node)


def logits(package: Package) -> NDArray[np.float32]:
    """Of a prompt, and of a step."""
    engine = open_engine(package, device("cpu"))
    assert isinstance(engine, OrtEngine)
    session = engine.open()
    assert isinstance(session, OrtSession)
    return np.concatenate([session.feed_all(TOKENS[:-1]), session.feed_all(TOKENS[-1:])])


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_experts_are_those_of_the_reference(decoder: str, recipe: str, tmp_path: Path) -> None:
    package = package_of(DECODERS[decoder], tmp_path / "package", RECIPES[recipe])
    assert operators(package)["QMoE"] == len(package.decoder.layers)
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    np.testing.assert_allclose(logits(package), expected, atol=CLOSE * expected.std(), rtol=0)


@pytest.mark.parametrize("variant", [QMOE.name, QMOE_FLOAT16.name])
def test_the_operator_chooses_where_it_makes_the_weights_that_the_model_has(variant: str, tmp_path: Path) -> None:
    """Two thirds of the nodes between the router and the experts' sum, and of their kernels on a GPU."""
    nodes = {
        name: operators(package_of(DECODERS[name], tmp_path / name, Recipe(method="nearest"), variant))
        for name in ("weights that sum to one", "many experts, a shared one")
    }
    alike, others = (nodes[name] for name in nodes)
    assert alike["QMoE"] == others["QMoE"] == 2
    assert not alike["ScatterElements"] + alike["Log"] + alike["Softmax"]
    assert alike["TopK"] == (2 if variant == QMOE_FLOAT16.name else 0)  # which rounds the logits behind it
    assert alike.total() <= others.total() - 16


def test_a_load_gathers_the_rows_of_gate_and_up_and_reads_no_others_for_it(tmp_path: Path) -> None:
    """What a Gather reads is copied first: six copies of a whole layer were two thirds of the time of a load."""
    package = package_of(mixture(experts=6, inner=64), tmp_path / "package", RECIPES["zero points"])
    (listed,) = package.graphs
    graph = onnx.load(package.folder / listed.file, load_external_data=False).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    gathers = [node for node in graph.node if node.op_type == "Gather" and ".qmoe." in node.name]
    assert [node.name.rpartition(".")[2] for node in gathers] == ["weight", "scale", "zero"] * 2
    assert {stored[node.input[0]].dims[0] for node in gathers} == {6 * 2 * 64}


def test_a_folder_whose_experts_lie_one_behind_the_other_keeps_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions wrote them, whose graph has the operator: one without it would take its place unasked."""

    def one_by_one(mlp: Mlp | Moe | None) -> Iterator[tuple[Linear, ...]]:
        for expert in mlps(mlp):
            yield (expert.up,) if expert.gate is None else (expert.gate, expert.up)
            yield (expert.down,)

    with monkeypatch.context() as patch:
        patch.setattr("embedllm.package.tensors.mlp_runs", one_by_one)
        package = package_of(mixture(), tmp_path / "package", RECIPES["symmetric"])
    before = (package.folder / QMOE.file).read_bytes()
    with pytest.raises(ExportError, match=r"experts one behind the other.*Export the model again"):
        write_variant(package.folder, QMOE.name)
    assert (package.folder / QMOE.file).read_bytes() == before
    write_variant(package.folder, FLOAT32.name)  # which reads each matrix alone


@pytest.mark.parametrize("bits", [4, 8])
def test_rounded_activations_cost_what_they_cost_expert_by_expert(bits: int, tmp_path: Path) -> None:
    decoder, recipe = mixture(experts=4, used=4), Recipe(method="nearest", bits=bits)  # no choice may flip
    fused = package_of(decoder, tmp_path / "fused", recipe)
    assert operators(fused)["QMoE"] == len(fused.decoder.layers)
    apart = package_of(decoder, tmp_path / "apart", recipe, FLOAT32.name)
    expected = ReferenceEngine(fused).open().feed_all(TOKENS)
    errors = [np.abs(logits(package) - expected).mean() for package in (fused, apart)]
    assert errors[0] < 1.5 * errors[1]
    assert errors[0] > 1e-5 * expected.std()  # or nothing was rounded, which is slower


@pytest.mark.parametrize(
    ("decoder", "recipe"),
    [
        (mixture(inner=48), Recipe(method="nearest", exact=True)),  # the last group of a row is padded
        (mixture(), Recipe(method="nearest", bits=8, exact=True)),  # whose activations it would round
    ],
    ids=["padded", "exact 8 bits"],
)
def test_what_the_operator_does_not_take_is_computed_expert_by_expert(
    decoder: Decoder, recipe: Recipe, tmp_path: Path
) -> None:
    package = package_of(decoder, tmp_path / "package", recipe)
    assert not operators(package)["QMoE"]
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    np.testing.assert_allclose(logits(package), expected, atol=CLOSE * expected.std(), rtol=0)


@pytest.mark.parametrize(
    "decoder",
    [mixture(scales_input=True), mixture(expert_scales="scales"), plain()],
    ids=["weighs its input", "weights of any sign", "dense"],
)
def test_a_model_without_such_experts_has_no_such_graph(decoder: Decoder) -> None:
    assert "has no experts that" in QMOE.unsupported(decoder)


@pytest.mark.parametrize(("bits", "is_fused"), [(4, True), (8, True), (16, False)])
def test_an_export_has_such_a_graph_for_integers_only(bits: int, is_fused: bool) -> None:
    planned = plan(mixture(), Recipe(method="nearest", bits=bits))
    assert (QMOE.name in {graph.variant for graph in variants(planned.decoder, planned.packing)}) == is_fused


def test_the_cpu_takes_it_where_nothing_has_to_be_exact(tmp_path: Path) -> None:
    package = package_of(mixture(), tmp_path / "package", Recipe(method="nearest"), FLOAT32.name)
    write_variant(package.folder, QMOE.name)
    package = open_package(package.folder)
    floats = RuntimeOptions(floats=True)
    for variant, engine in (
        (QMOE, open_engine(package, device("cpu"))),
        (FLOAT32, open_engine(package, device("cpu"), exact=True)),
        (FLOAT32, open_engine(package, device("cpu"), runtime=floats)),
    ):
        assert isinstance(engine, OrtEngine)
        assert engine.graph.variant == variant.name


@pytest.mark.parametrize(("inner", "is_fused"), [(128, True), (96, False)])  # a multiple of 64, as CUDA's kernels read
def test_a_step_on_cuda_is_captured_where_no_expert_gathers_tokens(inner: int, is_fused: bool, tmp_path: Path) -> None:
    package = package_of(mixture(inner=inner), tmp_path / "package", Recipe(method="nearest"), QMOE_FLOAT16.name)
    (graph,) = package.graphs
    assert (operators(package)["QMoE"] > 0) == is_fused
    assert gathers_tokens(package, graph) != is_fused


def test_an_older_gpu_takes_the_other_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = package_of(mixture(), tmp_path / "package", Recipe(method="nearest"), QMOE_FLOAT16.name)
    (graph,) = package.graphs
    for capability, reason in (("7.5", "this one has 7.5"), ("8.0", ""), ("12.0", "")):
        monkeypatch.setattr(cuda, "gpus", lambda known=capability: [Gpu(name="GPU", memory=1, capability=known)])
        assert cuda.unsupported_graph(graph, 0).endswith(reason)
        assert bool(cuda.unsupported_graph(graph, 0)) == bool(reason)
        assert not cuda.unsupported_graph(replace(graph, variant=FLOAT16.name), 0)


def test_an_older_runtime_takes_the_other_graph(tmp_path: Path) -> None:
    package = package_of(mixture(), tmp_path / "package", Recipe(method="nearest"))
    (graph,) = package.graphs
    assert "1.31.1" in unsupported_graph(graph, DEFAULT, version="1.31.1")
    assert not unsupported_graph(graph, DEFAULT, version="1.32.0")
    assert not unsupported_graph(replace(graph, variant=FLOAT32.name), DEFAULT, version="1.31.1")
