"""The demo model as GGUF, by llama.cpp and here: the same bits give the same replies."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from embedllm.backends.registry import open_engine
from embedllm.export import convert
from embedllm.package import open_package
from tests.gguf_files import write_gguf
from tests.openings import device

WINDOW, POSITIONS = 512, 2048
ROOT = Path(__file__).parent.parent


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_llama_cpp_and_we_say_the_same_of_one_file(kind: str, tmp_path: Path) -> None:
    """Measured on held-out texts: docs/guide-gguf.md. A text of another choice: EMBEDLLM_HELD_OUT=FILE."""
    llama_cpp = pytest.importorskip("llama_cpp")
    checkpoint = os.environ.get("EMBEDLLM_DEMO_CHECKPOINT")
    if not checkpoint:
        pytest.skip("EMBEDLLM_DEMO_CHECKPOINT does not name the folder of the demo's checkpoint (80 MB)")
    text = Path(os.environ.get("EMBEDLLM_HELD_OUT", ROOT / "docs" / "concepts.md")).read_text()
    file = write_gguf(tmp_path / "demo.gguf", Path(checkpoint), kind=kind)
    ids = Tokenizer.from_file(f"{checkpoint}/tokenizer.json").encode(text).ids[:POSITIONS]
    assert len(ids) == POSITIONS, f"the text has {len(ids)} tokens only"

    package = open_package(convert(file, tmp_path / "package"))
    ours = open_engine(package, device("cpu"), exact=True)
    theirs = llama_cpp.Llama(str(file), n_ctx=WINDOW, n_batch=WINDOW, logits_all=True, verbose=False)
    same, divergence = [], []
    for start in range(0, POSITIONS, WINDOW):
        window = ids[start : start + WINDOW]
        theirs.reset()
        theirs.eval(window)
        expected = log_softmax(np.array(theirs.scores[: len(window)]))
        found = log_softmax(ours.open().feed_all(window))
        same += list(expected.argmax(-1) == found.argmax(-1))
        divergence += list((np.exp(expected) * (expected - found)).sum(-1))
    print(f"{kind}, llama-cpp-python {importlib.import_module('llama_cpp').__version__}: same top token "  # noqa: T201
          f"{np.mean(same):.4f}, mean KL {np.mean(divergence):.2e}")  # fmt: skip
    assert np.mean(same) >= 0.99
    assert np.mean(divergence) <= 1e-3
