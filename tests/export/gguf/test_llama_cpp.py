"""The demo model as GGUF, by llama.cpp and here: the same bits say the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from embedllm.backends.devices.registry import open_engine
from embedllm.backends.ort.engine import OrtEngine
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from tests.support.gguf_files import Tensors, write_gguf
from tests.support.openings import device

WINDOW, POSITIONS = 512, 2048
ROOT = Path(__file__).parents[3]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def compared(expected: np.ndarray, found: np.ndarray) -> tuple[float, float]:
    """How often the top token is the same, and the mean KL divergence."""
    same = expected.argmax(-1) == found.argmax(-1)
    return float(same.mean()), float((np.exp(expected) * (expected - found)).sum(-1).mean())


def by_llama_cpp(file: Path, ids: list[int]) -> np.ndarray:
    llama_cpp: Any = pytest.importorskip("llama_cpp")
    llama = llama_cpp.Llama(str(file), n_ctx=WINDOW, n_batch=WINDOW, logits_all=True, verbose=False)
    rows = []
    for start in range(0, len(ids), WINDOW):
        llama.reset()
        llama.eval(ids[start : start + WINDOW])
        rows.append(np.array(llama.scores[:WINDOW]))
    llama.close()
    return log_softmax(np.concatenate(rows))


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_llama_cpp_and_we_say_the_same_of_one_file(kind: str, tmp_path: Path) -> None:
    """llama.cpp rounds what quantized matrices are multiplied by; so it is given the same weights as floats, too.

    Measured: docs/guide-gguf.md. EMBEDLLM_HELD_OUT names a text of another choice.
    """
    pytest.importorskip("llama_cpp")
    checkpoint = os.environ.get("EMBEDLLM_DEMO_CHECKPOINT")
    if not checkpoint:
        pytest.skip("EMBEDLLM_DEMO_CHECKPOINT does not name the folder of the demo's checkpoint (80 MB)")
    text = Path(os.environ.get("EMBEDLLM_HELD_OUT", ROOT / "docs" / "performance.md")).read_text(encoding="utf-8")
    ids = Tokenizer.from_file(f"{checkpoint}/tokenizer.json").encode(text).ids[:POSITIONS]
    assert len(ids) == POSITIONS, f"the text has {len(ids)} tokens only"

    def floats(tensors: Tensors) -> Tensors:
        type_ = gguf.GGMLQuantizationType[kind]
        return {
            name: gguf.dequantize(gguf.quantize(values, type_), type_) if values.ndim > 1 else values
            for name, values in tensors.items()
        }

    file = write_gguf(tmp_path / "demo.gguf", Path(checkpoint), kind=kind)
    wide = write_gguf(tmp_path / "wide.gguf", Path(checkpoint), kind="F32", change=floats)
    package = open_package(convert(file, tmp_path / "package", Recipe(bits=16 if kind == "F16" else None, exact=True)))
    engine = open_engine(package, device("cpu"), exact=True)
    assert isinstance(engine, OrtEngine)
    windows = [ids[start : start + WINDOW] for start in range(0, POSITIONS, WINDOW)]
    ours = log_softmax(np.concatenate([engine.open().feed_all(window) for window in windows]))
    theirs, exact = by_llama_cpp(file, ids), by_llama_cpp(wide, ids)
    told = {
        "as floats": compared(exact, ours),
        "quantized": compared(theirs, ours),
        "of its own ways": compared(exact, theirs),
    }
    for which, (same, divergence) in told.items():
        print(f"{kind}, {which}: same top token {same:.4f}, mean KL {divergence:.2e}")  # noqa: T201
    assert told["as floats"][0] >= 0.99
    assert told["as floats"][1] <= 1e-5
    assert told["quantized"][1] <= 1e-3
