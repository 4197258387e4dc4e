"""One thread for many small products: while it is asked for, and that what makes such products asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from embedllm.backends.reference.layers import Layers
from embedllm.export.quantization import importance
from embedllm.export.quantization.blas_threads import _openblas, one_blas_thread
from embedllm.export.quantization.float_forward import FloatPass
from embedllm.package.packing import Packing


@pytest.fixture
def threads() -> Iterator[Callable[[], int]]:
    """How many threads there are at a time: two, whatever the machine has."""
    functions = _openblas()
    if functions is None:
        pytest.skip("NumPy is built with another BLAS than OpenBLAS")
    count, limit = functions
    before = count()
    limit(2)
    yield count
    limit(before)


def test_products_are_made_on_one_thread_within_and_on_as_many_as_before_behind(threads: Callable[[], int]) -> None:
    with one_blas_thread():
        assert threads() == 1
        with one_blas_thread():
            assert threads() == 1
        assert threads() == 1
    assert threads() == 2


def test_an_error_gives_the_threads_back(threads: Callable[[], int]) -> None:
    with pytest.raises(ValueError, match="of a product"), one_blas_thread():
        raise ValueError("of a product")
    assert threads() == 2


def test_of_two_that_overlap_the_last_gives_the_threads_back(threads: Callable[[], int]) -> None:
    first, second = one_blas_thread(), one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert threads() == 1
    second.__exit__(None, None, None)
    assert threads() == 2


def test_gram_matrices_are_decomposed_on_one_thread(
    threads: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    cholesky = np.linalg.cholesky

    def decomposed(matrices: np.ndarray) -> np.ndarray:
        found.append(threads())
        return cholesky(matrices)

    monkeypatch.setattr(np.linalg, "cholesky", decomposed)
    decoder = cast("Any", SimpleNamespace(tied=False))  # all that is read of it
    products = [(("a",), np.eye(32, dtype=np.float32)[None]), (("b",), np.eye(64, dtype=np.float32)[None])]
    importance.spreads(products, decoder, {"a": Packing(bits=4), "b": Packing(bits=4)})
    assert found == [1, 1]
    assert threads() == 2


def test_each_sequence_of_a_text_attends_on_one_thread(
    threads: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def attended(_: Layers, index: int, attention: object, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        found.append(threads())
        return q[0]

    monkeypatch.setattr(Layers, "_attended", attended)
    monkeypatch.setattr(Layers, "__init__", lambda *_: None)
    model = FloatPass.__new__(FloatPass)
    model.floats = cast("Any", None)
    model.sequences = np.zeros((3, 4), np.int64)
    states = np.zeros((1, 12, 2), np.float32)
    model._attended(0, cast("Any", None), states, states, states)
    assert found == [1, 1, 1]
    assert threads() == 2
