"""The two ways in which graphs sum chosen experts: rows sorted by expert, and each expert's rows scattered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from embedllm.backends.devices.registry import open_engine
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, graphs
from embedllm.package.graph_variants import FLOAT32
from embedllm.package.package import Package, open_package
from tests.support.decoder_cases import VOCABULARY, Change, mixtures, plain
from tests.support.described import described_package
from tests.support.openings import device

CLOSE = 1e-4  # of the spread of the logits; measured up to 4e-6: the order of float32 sums differs
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY, 21)]
CHANGES: dict[str, Change] = {
    "many experts, most without rows": mixtures(experts=24, used=3),
    "biases": mixtures(bias=True, norm_topk=True),
    "the input is scaled": mixtures(scales_input=True),
}


def package_of(change: Change, folder: Path) -> Package:
    recipe = Recipe(method="nearest", exact=True)
    return open_package(described_package(folder, change(plain()), recipe, variant=FLOAT32.name))


def logits(package: Package) -> NDArray[np.float32]:
    """Of a prompt, and of a step."""
    session = open_engine(package, device("cpu"), exact=True).open()
    assert isinstance(session, OrtSession)
    return np.concatenate([session.feed_all(TOKENS[:-1]), session.feed_all(TOKENS[-1:])])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("splits", [True, False])
def test_both_sums_are_those_of_the_reference(
    change: str, splits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scattered one is that of GPUs, of which the CPU has all operators too."""
    monkeypatch.setattr(graphs, "VARIANTS", (replace(FLOAT32, splits_rows=splits),))
    package = package_of(CHANGES[change], tmp_path / "package")
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    np.testing.assert_allclose(logits(package), expected, atol=CLOSE * expected.std(), rtol=0)


def test_a_further_expert_is_three_products_and_the_reading_of_their_scales(tmp_path: Path) -> None:
    """Every other operator of an expert is one more for each of hundreds of experts."""

    def operators(experts: int) -> Counter[str]:
        folder = package_of(mixtures(experts=experts), tmp_path / str(experts)).folder
        return Counter(node.op_type for node in onnx.load(folder / FLOAT32.file, load_external_data=False).graph.node)

    layers = len(plain().layers)
    assert operators(9) - operators(8) == Counter(MatMulNBits=3 * layers, Cast=3 * layers)
