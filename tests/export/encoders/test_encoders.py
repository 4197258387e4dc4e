"""Every embedding and reranker family against transformers, on each engine (tests/support/encoders.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

from embedllm import load
from embedllm.export import Recipe, convert, encoders
from embedllm.files.safetensors_header import read_header
from embedllm.package.package import open_package
from embedllm.package.tensors import linears, outer_matrices, small_matrices, vectors
from embedllm.text.tokenizer import Tokenizer
from tests.support.encoders import ENCODERS, HIDDEN, TEXTS, WINDOW, Case, make_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from embedllm.types import F32

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

TOLERANCE = 1e-3  # of the spread
ENGINES = ("cpu", "openvino")
QUERY = "sea shells"


class Made:
    """A case's checkpoint, its model in transformers, and the folders that were exported of it."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.case, self.folder, self.checkpoint = case, folder, folder / "checkpoint"
        self.model = make_checkpoint(self.checkpoint, case)

    def package(self, bits: int) -> Path:
        out = self.folder / f"{bits} bits"
        return out if out.exists() else convert(self.checkpoint, out, Recipe(bits=bits))

    def found(self, bits: int, device: str, texts: Sequence[str] = TEXTS) -> F32:
        """What the library gives: vectors, or scores in the order of the texts, [texts, D]."""
        with load(self.package(bits), device=device, exact=True) as model:
            if not self.case.scores:
                return model.embed(texts)
            ranked = model.rerank(QUERY, texts)
        assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
        return np.array([[one.score] for one in sorted(ranked, key=lambda one: one.index)], np.float32)

    def expected(self) -> F32:
        """What transformers gives for each text alone, and plain formulas make of it."""
        found: list[F32] = []
        tokenizer = Tokenizer.open(self.checkpoint)
        for text in TEXTS:
            ids, types = tokenizer.encode_whole([QUERY, text] if self.case.scores else [text], limit=None)
            inputs = {"input_ids": torch.tensor([ids])}
            if self.case.family in ("bert", "jina_bert_v2"):
                inputs["token_type_ids"] = torch.tensor([types])
            with torch.no_grad():
                given = self.model(**inputs)
                found.append((self.score(given.logits) if self.case.scores else self.vector(given[0][0])).numpy())
        return np.stack(found)

    def score(self, logits: Tensor) -> Tensor:
        return logits[0] if self.case.said else torch.sigmoid(logits[0])

    def vector(self, hidden: Tensor) -> Tensor:
        """Of the vectors of tokens, [T, H]."""
        count = len(hidden)
        places = torch.arange(1, count + 1)[:, None]
        x = {
            "": lambda: hidden.mean(0), "mean": lambda: hidden.mean(0), "cls": lambda: hidden[0],
            "max": lambda: hidden.max(0).values, "lasttoken": lambda: hidden[-1],
            "weightedmean": lambda: (hidden * places).sum(0) / places.sum(),
            "mean_sqrt_len": lambda: hidden.sum(0) / count**0.5,
        }[self.case.pooling]()  # fmt: skip
        for index in range(len(self.case.denses)):
            tensors = load_file(self.checkpoint / f"{2 + index}_Dense" / "model.safetensors")
            x = torch.tensor(tensors["linear.weight"]) @ x
            if not index:
                x = torch.tanh(x + torch.tensor(tensors["linear.bias"]))
        return x / x.norm() if self.case.normalised else x


@pytest.fixture(scope="module", params=ENCODERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("encoder"), ENCODERS[request.param])


def near(found: F32, expected: F32) -> bool:
    assert found.shape == expected.shape
    return bool(np.abs(found - expected).max() <= TOLERANCE * expected.std())


@pytest.mark.parametrize("device", [*ENGINES, "reference"])
def test_sixteen_bits_of_texts_together_follow_transformers_of_each_alone(made: Made, device: str) -> None:
    expected = made.expected()
    # else a term could be missing unseen: of normed vectors of many values, or of scores between 0 and 1
    assert expected.std(axis=0).max() > (0.5 / HIDDEN**0.5 if made.case.normalised else 0.02)
    assert near(made.found(16, device), expected)


@pytest.mark.parametrize("device", ENGINES)
def test_four_bits_are_computed_as_the_reference_does(made: Made, device: str) -> None:
    assert near(made.found(4, device), made.found(4, "reference"))


@pytest.mark.parametrize("device", ENGINES)
def test_a_text_does_not_depend_on_its_neighbours(made: Made, device: str) -> None:
    together, alone = made.found(16, device), [made.found(16, device, [text]) for text in TEXTS]
    assert near(np.concatenate(alone), together)


def test_every_tensor_of_a_checkpoint_is_read(made: Made) -> None:
    """None is forgotten, but for BERT's pooler, which its vectors do not pass."""
    decoder = open_package(made.package(16)).decoder
    matrices = [linear for layer in decoder.layers for linear in linears(layer)]
    matrices += [*small_matrices(decoder), *outer_matrices(decoder), decoder.embedding]
    read = {f"{matrix.source}.weight" for matrix in matrices}
    read |= {vector.source for vector in vectors(decoder)}
    read |= {name.partition(".")[2] for name in read}  # of a checkpoint that was saved without its head
    read |= {name.removesuffix(".weight") for name in read}  # of the experts in one tensor
    stored = set(read_header(made.checkpoint / "model.safetensors").tensors)
    assert [name for name in sorted(stored - read) if not name.startswith("pooler.")] == []


def test_texts_are_longer_than_the_windows() -> None:
    assert max(len(text.replace(" ", "")) for text in TEXTS) > 2 * WINDOW


def test_every_family_is_proved_and_says_what_it_is() -> None:
    assert {case.family for case in ENCODERS.values()} == set(encoders.families())
    assert all(all(encoders.about(name)) for name in encoders.families())
    scored = {case.family for case in ENCODERS.values() if case.scores}
    assert scored == {name for name in encoders.families() if encoders.reranks(name)}
