"""What a run of matrices costs in 4 bits: as a real export of it shows, for every run of every kind of model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.errors import ExportError
from embedllm.export import Recipe, convert, pipeline
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.quantization.mixed_precision import open_runs
from embedllm.export.quantization.sensitivity import _LogSums, excerpt, losses
from embedllm.export.writing.plan import plan
from embedllm.hub.location import locate
from embedllm.package.packing import Packing
from tests.export.quantization.test_calibration import MODELS
from tests.support.calibration_texts import kl, logits
from tests.support.tiny import tiny_checkpoint, tiny_config, tiny_tensors, write_bf16

NARROW = Recipe(group_size=16, method="search")


@pytest.fixture(params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, overrides = MODELS[request.param]
    return tiny_checkpoint(tmp_path / "checkpoint", family, **dict[str, Any](overrides))


@pytest.fixture
def source(checkpoint: Path) -> Iterator[HuggingFaceSource]:
    source = HuggingFaceSource(locate(checkpoint, None))
    yield source
    source.close()


def packed_as(checkpoint: Path, out: Path, packing: Mapping[str, Packing]) -> Path:
    """An export that stores each matrix as told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pipeline,
            "plan",
            lambda decoder, recipe, prequantized, **_: plan(decoder, recipe, packing, prequantized=prequantized),
        )
        return convert(checkpoint, out, NARROW)


def test_every_runs_loss_is_the_kl_of_an_export_with_that_run_alone_in_4_bits(
    checkpoint: Path, source: HuggingFaceSource, tmp_path: Path
) -> None:
    decoder = describe(Config(source.config), None)
    sequences = np.random.default_rng(0).integers(0, decoder.vocabulary, (2, 12))
    narrow = plan(decoder, NARROW)
    runs = open_runs(narrow, NARROW)
    told: list[tuple[int, int]] = []
    found = losses(source, decoder, runs, narrow.packing, sequences, on_run=lambda *at: told.append(at))
    assert told[-1] == (len(runs), len(runs)) == (len(found), len(found))
    floats = {name: replace(packing, bits=32) for name, packing in narrow.packing.items()}
    base = logits(packed_as(checkpoint, tmp_path / "base", floats), sequences)
    for index, run in enumerate(runs):
        alone = floats | {linear.name: narrow.packing[linear.name] for linear in run}
        other = logits(packed_as(checkpoint, tmp_path / str(index), alone), sequences)
        assert found[index] == pytest.approx(kl(base, other), rel=0.01, abs=1e-6), run[0].name  # float32 both ways
        assert found[index] > 1e-5


def test_nearest_scales_lose_more_than_searched_ones(source: HuggingFaceSource) -> None:
    decoder = describe(Config(source.config), None)
    sequences = np.random.default_rng(0).integers(0, decoder.vocabulary, (2, 32))
    narrow = plan(decoder, NARROW)
    nearest, searched = (
        sum(losses(source, decoder, narrow.runs, narrow.packing, sequences, search=search)) for search in (False, True)
    )
    assert searched < nearest


def test_a_model_that_is_not_finite_on_the_text_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "checkpoint")
    tensors = tiny_tensors(tiny_config(), 0)
    tensors["model.norm.weight"][:] = 3e38
    write_bf16(folder / "model.safetensors", tensors)
    with closing(HuggingFaceSource(locate(folder, None))) as source:
        decoder = describe(Config(source.config), None)
        narrow = plan(decoder, NARROW)
        with pytest.raises(ExportError, match="logits are not finite"):
            losses(source, decoder, narrow.runs, narrow.packing, np.array([[1, 2, 3]]))


def test_the_sum_of_exponentials_does_not_depend_on_the_blocks() -> None:
    values = np.random.default_rng(0).normal(0, 30, (5, 40)).astype(np.float32)
    whole, blocks = _LogSums(5), _LogSums(5)
    whole.add(values)
    for start in (0, 1, 20):
        blocks.add(values[:, start : {0: 1, 1: 20, 20: 40}[start]])
    wide = values.astype(np.float64)
    expected = np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1)) + wide.max(axis=1)
    assert np.allclose(whole.value, expected, rtol=1e-6)
    assert np.allclose(blocks.value, expected, rtol=1e-6)


@given(count=st.integers(1, 70), length=st.integers(1, 600), vocabulary=st.integers(100, 300_000))
def test_an_excerpt_is_bounded_and_comes_from_all_over_the_text(count: int, length: int, vocabulary: int) -> None:
    text = np.arange(count * length).reshape(count, length)
    found = excerpt(text, vocabulary)
    assert len({*found.reshape(-1).tolist()}) == found.size <= max(256, (1 << 24) // vocabulary)
    assert (np.diff(found, axis=1) == 1).all()  # each is a stretch of the text
    assert found[0, 0] == 0
    assert len(found) == 1 or found[-1, 0] // length == count - 1
