"""Experts as one operator: what the reference computes, over the weights file as it is, where the operator fits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from embedllm.backends.devices.registry import open_engine
from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.backends.ort.engine import OrtEngine, unsupported_graph
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.graphs import variants, write_variant
from embedllm.export.writing.plan import plan
from embedllm.package.architecture import Decoder, Layer, Linear, Mlp, Moe
from embedllm.package.graph_variants import FLOAT32, QMOE
from embedllm.package.package import Package, open_package
from tests.support.decoder_cases import HIDDEN, VOCABULARY, layers, mixtures, plain
from tests.support.described import described_package
from tests.support.openings import device
from tests.support.tiny import tiny_config

CLOSE = 1e-4  # of the spread of the logits; measured up to 4e-6: the order of float32 sums differs
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY, 21)]


def mixture(*, experts: int = 6, used: int = 2, inner: int = 64, shared: bool = False, bias: bool = False,
            limit: float = 0.0, **changes: object) -> Decoder:  # fmt: skip
    """Two layers of experts whose rows are whole numbers of groups; with a limit they are clamped as gpt-oss's."""
    decoder = describe(Config(tiny_config("qwen3", hidden_size=64, num_attention_heads=2, num_key_value_heads=1,
                                          head_dim=32, num_hidden_layers=2, vocab_size=VOCABULARY)), None)  # fmt: skip
    mixed = mixtures(experts=experts, used=used, inner=inner, shared=shared, bias=bias)(decoder)

    def linear(found: Linear) -> Linear:
        return replace(found, columns=64) if found.columns == HIDDEN else found

    def mlp(found: Mlp) -> Mlp:
        assert found.gate is not None
        found = replace(found, gate=linear(found.gate), up=linear(found.up), down=replace(found.down, rows=64))
        return replace(found, swiglu_alpha=1.7, swiglu_limit=limit, up_offset=1.0) if limit else found

    def of_layer(at: int, layer: Layer) -> Layer:
        moe = layer.mlp
        assert isinstance(moe, Moe)
        own = tuple(mlp(one) for one in moe.experts)
        every = None if moe.shared is None else mlp(moe.shared)
        moe = replace(moe, experts=own, shared=every, router=linear(moe.router))
        return replace(layer, mlp=replace(moe, **changes))  # type: ignore[arg-type]  # fields of Moe

    return layers(of_layer)(mixed)


DECODERS = {
    "many experts, a shared one": mixture(experts=24, used=3, shared=True),
    "weights that are scaled": mixture(
        inner=128, norm_topk=True, scale=2.5, scoring_func="sigmoid", score_correction_bias="correction", groups=2
    ),
    "clamped gates, biases": mixture(bias=True, limit=0.25),
    "one expert": mixture(experts=1, used=1),
}
RECIPES = {
    "symmetric": Recipe(method="nearest", exact=True),
    "zero points": Recipe(method="nearest", symmetric=False, exact=True),
    "odd zero points": Recipe(method="nearest", symmetric=False, exact=True, group_size=64),
}


def package_of(decoder: Decoder, folder: Path, recipe: Recipe, variant: str = QMOE.name) -> Package:
    return open_package(described_package(folder, decoder, recipe, variant=variant))


def operators(package: Package) -> Counter[str]:
    graph = onnx.load(package.folder / QMOE.file, load_external_data=False).graph
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


@pytest.mark.parametrize("decoder", [mixture(scales_input=True), plain()], ids=["weighs its input", "dense"])
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


def test_an_older_runtime_takes_the_other_graph(tmp_path: Path) -> None:
    package = package_of(mixture(), tmp_path / "package", Recipe(method="nearest"))
    (graph,) = package.graphs
    assert "1.31.1" in unsupported_graph(graph, DEFAULT, version="1.31.1")
    assert not unsupported_graph(graph, DEFAULT, version="1.32.0")
    assert not unsupported_graph(replace(graph, variant=FLOAT32.name), DEFAULT, version="1.31.1")
