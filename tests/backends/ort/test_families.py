"""Every field that a described decoder can have, in the graphs of ONNX Runtime's CPU, against the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.devices.registry import open_engine
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe
from embedllm.package.package import open_package
from tests.support.decoder_cases import CASES, VOCABULARY, plain
from tests.support.described import described_package
from tests.support.openings import device
from tests.support.packing_cases import with_recipes

RECIPES = {"16 bits": Recipe(bits=16), "32 bits": Recipe(bits=32), "int4": Recipe(method="nearest", exact=True)}
CLOSE = 1e-4  # of the spread of the logits; measured up to 7e-6: the order of float32 sums differs


@pytest.mark.parametrize(("case", "recipe"), with_recipes(RECIPES, every="int4"))
def test_logits_follow_the_reference(case: str, recipe: str, tmp_path: Path) -> None:
    """A prompt, steps, a rewind, several tokens on top, and one whose last logits alone are computed."""
    decoder = CASES[case](plain())
    package = open_package(described_package(tmp_path / "package", decoder, RECIPES[recipe], variant="generic-float32"))
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, 24).tolist()
    expected = ReferenceEngine(package).open().feed_all(tokens)
    session = open_engine(package, device("cpu"), exact=True).open()
    assert isinstance(session, OrtSession)
    prompt = session.feed_all(tokens[:9])
    steps = [session.feed_all([token]) for token in tokens[9:12]]
    session.rewind(7)
    rows = np.concatenate([prompt, *steps, session.feed_all(tokens[7:20])])
    last = session.feed(tokens[20:])
    np.testing.assert_allclose(
        rows, np.concatenate([expected[:12], expected[7:20]]), atol=CLOSE * expected.std(), rtol=0
    )
    np.testing.assert_allclose(last.values(range(VOCABULARY)), expected[-1], atol=CLOSE * expected.std(), rtol=0)
