"""Mixtures in the OpenVINO model: the form in which plugins find the operation that reads the chosen experts alone."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import FeedsAll
from embedllm.backends.devices.registry import open_engine
from embedllm.backends.openvino import driver
from embedllm.backends.openvino.runtime import core
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Moe
from embedllm.package.graph_variants import OPENVINO
from embedllm.package.package import WEIGHTS, Package, open_package
from tests.support.decoder_cases import VOCABULARY, layers
from tests.support.described import described_package
from tests.support.mixtures import DECODERS, mixture
from tests.support.openings import device

ON_X86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="elsewhere OpenVINO computes every expert"
)
CLOSE = 1e-4  # of the spread of the logits; measured up to 4e-6: the order of float32 sums differs
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY, 21)]
RECIPES = {
    "symmetric": Recipe(method="nearest", exact=True),
    "zero points": Recipe(method="nearest", symmetric=False, exact=True),
    "8 bits": Recipe(method="nearest", bits=8, exact=True),
    "odd zero points": Recipe(method="nearest", symmetric=False, exact=True, group_size=64),
}


def with_gelu(decoder: Decoder) -> Decoder:
    def of_layer(_: int, layer: Layer) -> Layer:
        assert isinstance(layer.mlp, Moe)
        experts = tuple(replace(expert, activation="gelu_tanh") for expert in layer.mlp.experts)
        return replace(layer, mlp=replace(layer.mlp, experts=experts))

    return layers(of_layer)(decoder)


CASES = {
    **{name: DECODERS[name] for name in ("many experts, a shared one", "weights that are scaled", "weights of zero")},
    "GELU, weights of any sign": with_gelu(mixture(expert_scales="scales")),
}


def package_of(decoder: Decoder, folder: Path, recipe: Recipe) -> Package:
    return open_package(described_package(folder, decoder, recipe, variant=OPENVINO))


def executed(package: Package) -> Counter[str]:
    """Operations of the compiled model, by kind."""
    model = core().read_model(package.folder / "openvino_model.xml", package.folder / WEIGHTS)
    compiled = core().compile_model(model, "CPU")
    return Counter(node.rt_info["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops())


@ON_X86
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_experts_are_those_of_the_reference(case: str, recipe: str, tmp_path: Path) -> None:
    package = package_of(CASES[case], tmp_path / "package", RECIPES[recipe])
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    session = open_engine(package, device("openvino"), exact=True).open()
    assert isinstance(session, FeedsAll)
    found = np.concatenate([session.feed_all(TOKENS[:-1]), session.feed_all(TOKENS[-1:])])
    np.testing.assert_allclose(found, expected, atol=CLOSE * expected.std(), rtol=0)


@ON_X86
@pytest.mark.parametrize("recipe", ["symmetric", "zero points", "8 bits"])
@pytest.mark.parametrize("case", ["many experts, a shared one", "GELU, weights of any sign"])
def test_the_experts_of_a_layer_are_three_operations(case: str, recipe: str, tmp_path: Path) -> None:
    """If not, each of them computes every token: OpenVINO has lost what it found in 2026.4."""
    package = package_of(CASES[case], tmp_path / "package", RECIPES[recipe])
    assert executed(package)["GatherMatmul"] == 3 * len(package.decoder.layers)


@pytest.mark.parametrize(
    ("decoder", "recipe"),
    [(mixture(bias=True, limit=0.25), "symmetric"), (mixture(inner=48), "symmetric"), (mixture(), "odd zero points")],
    ids=["clamped, with biases", "padded rows", "odd zero points"],
)
def test_other_experts_compute_the_tokens_that_chose_them(decoder: Decoder, recipe: str, tmp_path: Path) -> None:
    package = package_of(decoder, tmp_path / "package", RECIPES[recipe])
    model = (package.folder / "openvino_model.xml").read_text()
    assert "VariadicSplit" in model
    assert 'type="Tile"' not in model  # of all tokens for all experts


def test_a_mixture_is_refused_where_openvino_computes_every_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_of(mixture(), tmp_path / "package", RECIPES["symmetric"])
    (family, *_) = driver.DRIVER.families
    assert family.unsupported_package is not None
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    assert family.unsupported_package(package, None) is None
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    refused = family.unsupported_package(package, None)
    assert refused is not None
    assert "'arm64'" in refused.reason
    apart = package_of(mixture(bias=True, limit=0.25), tmp_path / "apart", RECIPES["symmetric"])  # as in older folders
    assert family.unsupported_package(apart, None) is None
