"""The reference against itself: what it does to save memory must change nothing. Others hold it to transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.reference import engine as reference
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ContextFull
from embedllm.export import Recipe
from embedllm.package.package import open_package

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(symmetric=False), Recipe(bits=8), Recipe(bits=16)], ids=str)
def test_a_large_model_is_unpacked_piece_by_piece_to_the_same_numbers(
    recipe: Recipe, tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = open_package(tiny_package("qwen3", recipe))
    kept = ReferenceEngine(package).open().feed_all(TOKENS)
    monkeypatch.setattr(reference, "_KEPT", 0)  # weights; now this model counts as large
    engine = ReferenceEngine(package)
    np.testing.assert_array_equal(engine.open().feed_all(TOKENS), kept)
    table = package.decoder.embedding
    np.testing.assert_array_equal(engine.rows(table, [7, 0, 7]), engine.matrix(table)[[7, 0, 7]])


def test_pieces_and_rewinds_give_the_logits_of_a_whole_feed(tiny_package: Callable[..., Path]) -> None:
    engine = ReferenceEngine(open_package(tiny_package("mistral", sliding_window=4)))
    whole = engine.open().feed_all(TOKENS)
    session = engine.open()
    session.feed_all(TOKENS[:5])
    session.feed_all([8, 8])
    session.rewind(5)
    np.testing.assert_allclose(session.feed_all(TOKENS[5:]), whole[5:], atol=1e-5)


def test_a_full_context_is_refused_whole(tiny_package: Callable[..., Path]) -> None:
    session = ReferenceEngine(open_package(tiny_package("llama"))).open()
    session.feed([1] * 120)
    with pytest.raises(ContextFull):
        session.feed([1] * 9)
    assert session.position == 120
