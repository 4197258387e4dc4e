"""Columns scaled and what comes before them divided: the same model as floats, whatever the vectors are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.quantization.float_forward import FloatPass
from embedllm.export.quantization.scaled_source import Fold, ScaledSource, folds, head_fold
from embedllm.hub.location import locate
from embedllm.package.architecture.mlp import Mlp
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.tiny import tiny_checkpoint

if TYPE_CHECKING:
    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.types import F32

MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "tied, q and k norms, shared kv heads": ("qwen3", {}),
    "biases of q, k and v": ("qwen2", {}),
    "biases everywhere, one kv head": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "a window, a kv head for each head": ("mistral", {"sliding_window": 8, "num_key_value_heads": 4}),
}
Open = Callable[..., "tuple[HuggingFaceSource, Decoder]"]


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    def make(family: str, **config: object) -> tuple[HuggingFaceSource, Decoder]:
        folder = tiny_checkpoint(tmp_path / "checkpoint", family, **dict[str, Any](config))
        source = HuggingFaceSource(locate(folder, None))
        request.addfinalizer(source.close)
        return source, describe(Config(source.config), None)

    return make


def every_fold(decoder: Decoder) -> list[Fold]:
    head = head_fold(decoder)
    return [fold for layer in decoder.layers for fold in folds(layer)] + ([] if head is None else [head])


def random_scales(decoder: Decoder, seed: int = 0) -> list[tuple[Fold, F32]]:
    random = np.random.default_rng(seed)
    return [(fold, np.exp2(random.uniform(-3, 3, fold.size)).astype(np.float32)) for fold in every_fold(decoder)]


def logits(source: Source, decoder: Decoder) -> F32:
    sequences = np.random.default_rng(1).integers(0, decoder.vocabulary, (2, 24))
    run = FloatPass(source, decoder, sequences)
    run.begin()
    for index in range(len(decoder.layers)):
        run.layer(index)
    return run.head_inputs() @ source.rows(f"{decoder.head.source}.weight", 0, decoder.vocabulary).T


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_any_vectors_leave_the_logits_as_they_are(model: str, seed: int, opened: Open) -> None:
    family, config = MODELS[model]
    source, decoder = opened(family, **config)
    wanted = logits(source, decoder)
    found = logits(ScaledSource(source, random_scales(decoder, seed)), decoder)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_each_fold_matters(opened: Open) -> None:
    """Without the division the logits would be others: the test above can fail."""
    source, decoder = opened("llama")
    wanted = logits(source, decoder)
    for fold in every_fold(decoder):
        one_sided = ScaledSource(source, [(fold, np.full(fold.size, 2, np.float32))])
        one_sided._divisors.clear()
        assert np.abs(logits(one_sided, decoder) - wanted).max() > 1e-3


def test_what_is_stored_is_scaled_by_the_vector(opened: Open) -> None:
    source, decoder = opened("qwen2")
    layer = decoder.layers[1]
    scales = {fold.after[0].name: (fold, scale) for fold, scale in random_scales(decoder)}
    scaled = ScaledSource(source, scales.values())
    attention = decoder.attentions[1]
    v, o = attention.v, attention.o
    before, inside = scales[attention.q.name][1], scales[o.name][1]

    def read(one: Source, name: str, rows: int) -> F32:
        return one.rows(name, 0, rows)

    plain = read(source, f"{v.source}.weight", v.rows)
    assert np.allclose(read(scaled, f"{v.source}.weight", v.rows), plain * before / inside[:, None], rtol=1e-6)
    assert np.allclose(read(scaled, f"{v.source}.bias", v.rows), read(source, f"{v.source}.bias", v.rows) / inside)
    shared = np.concatenate([inside[:16], inside[:16], inside[16:], inside[16:]])  # two heads for each kv head of 16
    assert np.allclose(
        read(scaled, f"{o.source}.weight", o.rows), read(source, f"{o.source}.weight", o.rows) * shared, rtol=1e-6
    )
    norm = layer.attention_norm
    assert norm is not None
    assert np.allclose(read(scaled, norm.source, norm.size), read(source, norm.source, norm.size) / before)


def test_rows_come_in_pieces_as_they_come_whole(opened: Open) -> None:
    source, decoder = opened("llama", mlp_bias=True)
    scaled = ScaledSource(source, random_scales(decoder))
    mlp = decoder.layers[0].mlp
    assert isinstance(mlp, Mlp)
    up = mlp.up
    for name in (f"{up.source}.weight", f"{up.source}.bias"):
        pieces = [scaled.rows(name, start, start + 32) for start in range(0, up.rows, 32)]
        assert np.array_equal(np.concatenate(pieces), scaled.rows(name, 0, up.rows))


def test_a_tied_table_stays_as_it_is(opened: Open) -> None:
    source, decoder = opened("qwen3")
    assert head_fold(decoder) is None
    name, rows = f"{decoder.embedding.source}.weight", decoder.vocabulary
    assert np.array_equal(ScaledSource(source, random_scales(decoder)).rows(name, 0, rows), source.rows(name, 0, rows))


@pytest.mark.peer
@pytest.mark.parametrize(("name", "count"), [
    ("gemma3_text", 8),  # norms that add 1
    ("cohere", 4),  # attention and mlp read one norm
    ("olmo3", 5),  # no norm before a matrix
    ("glm4", 3),  # gate and up in one tensor
    ("starcoder2", 2),  # norms with biases
    ("gpt2", 0),  # all of it
    ("glm4_moe", 5),  # a mixture
])  # fmt: skip
def test_what_a_family_cannot_have_scaled_is_left_out(name: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    make_checkpoint(tmp_path / "checkpoint", FAMILIES[name])
    source = HuggingFaceSource(locate(tmp_path / "checkpoint", None))
    decoder = describe(Config(source.config), None)
    assert len(every_fold(decoder)) == count
    wanted, found = (logits(one, decoder) for one in (source, ScaledSource(source, random_scales(decoder))))
    source.close()
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
