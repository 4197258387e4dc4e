"""Published tokenizers, rebuilt from GGUF: a page's tokens and texts are Python's."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedllm.export.gguf.metadata_files import write_texts
from embedllm.export.gguf.reader import read_model
from tests.text.test_continuation import REAL
from tests.web.test_text import run_node, vectors_of

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module", params=REAL)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    write_texts(read_model(REAL[request.param]()), made)
    return made


def test_a_page_tokenizes_as_python_does(folder: Path, tmp_path: Path, node: str, node_modules: Path) -> None:
    vectors = {"kinds": [vectors_of(folder.name, folder, 300)], "damaged": [], "refused": []}
    run_node(node, node_modules, "tokenizer.test.mjs", vectors, tmp_path)
