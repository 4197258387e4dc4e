"""The models of the tests of integrations: the demo, and a tiny embedding model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedllm
from embedllm.export import convert
from tests.support.encoder_folders import write_embedder


@pytest.fixture(scope="session")
def demo() -> Iterator[embedllm.Model]:
    with embedllm.load("demo") as model:
        yield model


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    convert(write_embedder(folder / "checkpoint"), folder / "embedder")
    return folder / "embedder"


@pytest.fixture(scope="session")
def vectors_of(embedder: Path) -> Iterator[Callable[[list[str], str | None], list[list[float]]]]:
    with embedllm.load(embedder) as model:
        yield lambda texts, kind: model.embed(texts, kind=kind).tolist()
