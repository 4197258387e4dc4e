"""Mixtures of experts on WebGPU in float16, whose experts are one operator and whose steps are captured.

On a GPU, or on a software one: .ci/lavapipe.sh pytest -m webgpu tests/backends/gpu/test_webgpu_mixtures.py
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import Device
from embedllm.backends.gpu.webgpu import WebGpuEngine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe
from embedllm.package.graph_variants import WEBGPU_QMOE_FLOAT16
from embedllm.package.package import open_package
from tests.support.described import described_package
from tests.support.logits import values
from tests.support.mixtures import DECODERS
from tests.support.tiny_recurrent import tiny_hybrid_mixture

pytestmark = pytest.mark.webgpu

CLOSE = 0.02  # of the spread of the logits; measured 0.002 on lavapipe, 0.01 where rows of 128 are rounded to 8 bits
TOKENS = np.random.default_rng(3).integers(3, 60, 60).tolist()
HYBRID, NOT_CAPTURED = "delta rule", "weights that are scaled"  # whose groups of experts are chosen by a scatter


@pytest.mark.parametrize("name", [*DECODERS, HYBRID])
def test_mixtures_follow_the_reference(
    name: str, device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps, by chance of other experts each."""
    caplog.set_level(logging.INFO, "embedllm")
    if name == HYBRID:
        folder = tiny_hybrid_mixture(tmp_path / "package", WEBGPU_QMOE_FLOAT16.name)
    else:
        folder = described_package(tmp_path / "package", DECODERS[name], Recipe(method="nearest"),
                                   variant=WEBGPU_QMOE_FLOAT16.name)  # fmt: skip
    package = open_package(folder)
    graph = package.graph(WEBGPU_QMOE_FLOAT16.name)
    assert graph is not None
    engine = WebGpuEngine(package, graph, device)
    assert engine.captures is (name != NOT_CAPTURED), caplog.text
    assert engine.max_batch == 1
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    session = engine.open()
    steps = np.array([values(session.feed([token])) for token in TOKENS])  # several at once: docs/webgpu.md#qmoe
    session.close()
    engine.close()
    # where two experts are as good as equal, rounding chooses another one
    assert np.quantile(np.abs(steps - expected).max(axis=1), 0.9) < CLOSE * np.ptp(expected)
