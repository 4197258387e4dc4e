"""What tests of exports share."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedllm.export import pipeline

TOKENIZERS = {f"openvino_{name}.{ending}" for name in ("tokenizer", "detokenizer") for ending in ("xml", "bin")}


@pytest.fixture
def without_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The export, as if the peers were installed and gave a tokenizer."""

    def write(source: Path, folder: Path) -> None:
        assert (source / "tokenizer.json").exists()
        for name in TOKENIZERS:
            (folder / name).write_bytes(b"x")

    for importer in ("request", "openvino.tokenizer"):  # the latter's is the command's
        monkeypatch.setattr(f"embedllm.export.{importer}.check_installed", lambda: None)
    monkeypatch.setattr(pipeline, "write_tokenizer", write)
