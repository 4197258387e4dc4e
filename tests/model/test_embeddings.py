"""Models that embed or score texts: prompts, limits, order and refusals, on tiny BERTs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm import Model, load
from embedllm.backends.base import Interrupted
from embedllm.backends.reference.encoder_engine import BATCH, Tokens, batches
from embedllm.backends.reference.encoder_layers import pooled
from embedllm.errors import ContextFull, DeviceUnavailable, ExportError, UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.package.features import ENCODER
from embedllm.package.package import open_package
from tests.support.encoder_folders import PROMPTED, write_embedder, write_reranker

TEXTS = ["a fox", "the quick brown fox", "dog"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    return convert(write_embedder(folder / "checkpoint"), folder / "package")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranker")
    return convert(write_reranker(folder / "checkpoint"), folder / "package")


@pytest.fixture
def model(embedder: Path) -> Iterator[Model]:
    with load(embedder, device="cpu", exact=True) as model:
        yield model


@pytest.fixture
def scorer(reranker: Path) -> Iterator[Model]:
    with load(reranker, device="cpu", exact=True) as model:
        yield model


def test_the_folder_says_what_it_is(embedder: Path) -> None:
    package = open_package(embedder)
    assert package.manifest["features"] == [ENCODER]
    assert package.decoder.encoder is not None
    assert package.decoder.encoder.prompts == PROMPTED
    assert (package.context, package.decoder.context) == (40, 40)  # not 48: max_seq_length goes before
    assert [graph.file for graph in package.graphs] == ["model.onnx", "model.fp16.onnx", "openvino_model.xml"]
    assert not (embedder / "genai_config.json").exists()


def test_vectors_come_in_the_order_of_the_texts_with_length_one(model: Model) -> None:
    found = model.embed(TEXTS)
    assert (found.shape, found.dtype) == ((3, 32), np.float32)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert np.allclose(found, np.concatenate([model.embed([text]) for text in TEXTS]), atol=1e-6)
    assert model.embed([]).shape == (0, 32)


def test_a_kind_puts_its_prompt_in_front(model: Model) -> None:
    plain = model.embed(["find a fox", "a fox", "sort a fox"])
    assert np.allclose(model.embed(["a fox"], kind="query"), plain[:1], atol=1e-6)
    assert np.allclose(model.embed(["a fox"], kind="document"), plain[1:2], atol=1e-6)
    assert np.allclose(model.embed(["a fox"], kind="topic"), plain[2:], atol=1e-6)
    assert np.abs(plain[0] - plain[1]).max() > 0.01
    with pytest.raises(ValueError, match="kind is 'passage'; 'package' knows 'query', 'document', 'topic'"):
        model.embed(["a fox"], kind="passage")


def test_what_is_counted_is_what_is_read(model: Model, scorer: Model) -> None:
    marks = 2  # [CLS], [SEP]; the other tokens are letters
    assert model.count_tokens(["a fox", "dog"], kind="document") == len("afox") + len("dog") + 2 * marks
    assert model.count_tokens(["a fox"], kind="query") == len("findafox") + marks
    assert model.count_tokens(["a" * 99], truncate=True) == model.context
    assert scorer.count_tokens(["a fox"], query="dog") == len("afox") + len("dog") + 3


def test_fewer_dimensions_are_the_first_of_them_and_have_length_one_again(model: Model) -> None:
    whole, raw = model.embed(TEXTS, normalize=True), model.embed(TEXTS, normalize=False)
    cut = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    assert np.allclose(model.embed(TEXTS, dimensions=8), cut, atol=1e-6)
    assert np.array_equal(model.embed(TEXTS, dimensions=8, normalize=False), raw[:, :8])
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.01
    for wrong in (0, 33):
        with pytest.raises(ValueError, match=f"dimensions is {wrong}; expected 1 to 32"):
            model.embed(TEXTS, dimensions=wrong)


def test_a_text_that_is_too_long_is_named_and_cut_only_when_asked(model: Model) -> None:
    long = "abcdefghij" * 5
    with pytest.raises(ContextFull, match=r"text 1 has 52 tokens; 'package' reads 40 at most.*truncate=True") as caught:
        model.embed(["a", long])
    assert (caught.value.tokens, caught.value.limit) == (52, 40)
    kept = long[:38]  # with the two special tokens around them: 40
    assert np.allclose(model.embed([long], truncate=True), model.embed([kept]), atol=1e-6)


def test_documents_are_ranked_by_their_scores(scorer: Model) -> None:
    ranked = scorer.rerank("a fox", TEXTS)
    assert sorted(one.index for one in ranked) == [0, 1, 2]
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert all(0 < one.score < 1 for one in ranked)
    assert scorer.rerank("a fox", TEXTS, top=1) == ranked[:1]
    assert scorer.rerank("a fox", []) == []
    with pytest.raises(ValueError, match="top is 0"):
        scorer.rerank("a fox", TEXTS, top=0)


def test_of_a_pair_that_is_too_long_the_longer_text_is_cut(scorer: Model) -> None:
    query, long = "abcde", "abcdefghij" * 6
    with pytest.raises(ContextFull, match="document 1, with the query, has 68 tokens"):
        scorer.rerank(query, ["a", long])
    (cut,), (kept,) = scorer.rerank(query, [long], truncate=True), scorer.rerank(query, [long[:40]])
    assert cut.score == pytest.approx(kept.score, abs=1e-6)  # 48 less three special tokens less the query's five


def test_async_calls_give_the_same(model: Model, scorer: Model) -> None:
    assert np.array_equal(asyncio.run(model.aembed(TEXTS)), model.embed(TEXTS))
    assert asyncio.run(scorer.arerank("a fox", TEXTS)) == scorer.rerank("a fox", TEXTS)


def test_texts_may_come_from_a_generator(model: Model, scorer: Model) -> None:
    """All of them count, none is lost to a check that goes over them first."""

    def generated() -> Any:  # noqa: ANN401  # no Sequence
        return (text for text in TEXTS)

    assert np.array_equal(model.embed(generated()), model.embed(TEXTS))
    assert scorer.rerank("a fox", generated()) == scorer.rerank("a fox", TEXTS)
    assert model.count_tokens(generated()) == model.count_tokens(TEXTS)
    with load("demo", device="reference") as chat:
        assert chat.count_tokens(generated()) == chat.count_tokens(TEXTS) > 0


def test_what_is_counted_is_checked_as_what_is_read(model: Model, scorer: Model) -> None:
    with pytest.raises(ValueError, match="texts is one text; expected a list"):
        model.count_tokens("a fox")
    with pytest.raises(ValueError, match="texts has int at 1; expected texts"):
        scorer.count_tokens(["a", 1], query="dog")  # type: ignore[list-item]  # the caller's slip


def test_what_a_model_cannot_do_is_said(model: Model, scorer: Model) -> None:
    with pytest.raises(ValueError, match=r"'package' is an embedding model: embed\(\).* generates no text"):
        model.generate("hello")
    with pytest.raises(ValueError, match=r"is an embedding model.* does not score pairs"):
        model.rerank("a", ["b"])
    with pytest.raises(ValueError, match=r"is a reranker: rerank\(\).* has no vectors"):
        scorer.embed(["a"])
    with pytest.raises(ValueError, match=r"is a reranker.* generates no text"):
        next(scorer.stream("hello"))
    with load("demo", device="reference") as chat:
        with pytest.raises(ValueError, match="generates text and was not exported as an embedding model"):
            chat.embed(["a"])
        with pytest.raises(ValueError, match="generates text and was not exported as a reranker"):
            chat.rerank("a", ["b"])


def test_what_is_no_list_of_texts_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="texts is one text; expected a list"):
        model.embed("one")
    wrong: Any = [1]
    with pytest.raises(ValueError, match="texts has int at 0; expected texts"):
        model.embed(wrong)


def test_devices_that_run_no_such_model_are_refused(embedder: Path) -> None:
    with pytest.raises(
        DeviceUnavailable, match="'package' is an embedding or reranker model, which this device does not support"
    ):
        load(embedder, device="npu-on-cpu")
    with pytest.raises(DeviceUnavailable, match="which this device does not support"):
        load(embedder, device="cpu+openvino")


@pytest.mark.parametrize("option", [{"kv": "int8"}, {"adapters": {}}, {"draft": "demo"}, {"chat_template": ""}])
def test_options_of_chat_models_are_refused(embedder: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"generates no text; leave out {next(iter(option))}"):
        load(embedder, **option)


@pytest.mark.parametrize(
    ("recipe", "options", "said"),
    [
        (Recipe(method="gptq"), {}, "the method 'gptq'"),
        (Recipe(rotate=True), {}, "recipe.rotate"),
        (Recipe(size=10**6), {}, "recipe.size"),
        (Recipe(), {"shard": 1 << 20}, "shard"),
        (Recipe(), {"lora": "somewhere"}, "lora"),
    ],
)
def test_exports_refuse_what_only_chat_models_have(
    tmp_path: Path, recipe: Recipe, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ExportError, match=f"there is no {said}. Leave it out"):
        convert(write_embedder(tmp_path / "checkpoint"), tmp_path / "out", recipe, **options)
    assert not (tmp_path / "out").exists()


def test_a_text_gets_as_many_tokens_as_the_export_was_asked_for(tmp_path: Path) -> None:
    source = write_embedder(tmp_path / "checkpoint")
    assert open_package(convert(source, tmp_path / "out", Recipe(context=48))).context == 48
    with pytest.raises(ExportError, match="context is 49 tokens; expected 1 to 48"):
        convert(source, tmp_path / "more", Recipe(context=49))


def test_a_task_may_be_asked_for(tmp_path: Path) -> None:
    source = write_embedder(tmp_path / "checkpoint")
    with pytest.raises(UnsupportedModel, match="model_type 'bert' is not described here"):
        convert(source, tmp_path / "out", task="chat")
    with pytest.raises(ValueError, match="task is 'sing'; expected None or one of: chat, embed, rerank"):
        convert(source, tmp_path / "out", task="sing")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, "config.json has 2 labels .*expected a reranker"),
        ({"sbert_ce_default_activation_function": "torch.Odd"}, "a score is made by 'torch.Odd'"),
        ({"model_type": "distilbert"}, "'distilbert' is not described here as a reranker; those are: bert"),
        ({"model_type": "electra"}, "model_type 'electra' is not described here as a model that reads whole texts"),
        ({"model_type": "llama"}, "'llama' is not described .* export it with task 'chat'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ],
)
def test_checkpoints_that_are_not_described_are_refused(tmp_path: Path, values: dict[str, object], said: str) -> None:
    source = write_reranker(tmp_path / "checkpoint")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **values}))
    with pytest.raises(UnsupportedModel, match=said):
        convert(source, tmp_path / "out")


def test_norms_may_have_the_names_of_the_first_bert(tmp_path: Path) -> None:
    """As bert-base-uncased and what was trained from it long ago have them."""
    source = write_embedder(tmp_path / "source")
    plain = convert(source, tmp_path / "plain")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(source / "model.safetensors")
    renamed = {name: value for name, value in tensors.items() if not name.endswith(tuple(old))}
    for end, other in old.items():
        renamed |= {f"{n.removesuffix(end)}{other}": v for n, v in tensors.items() if n.endswith(end)}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, source / "model.safetensors")
    again = convert(source, tmp_path / "again")
    assert (again / "weights.safetensors").read_bytes() == (plain / "weights.safetensors").read_bytes()


def test_a_cancelled_call_stops_before_its_next_run(model: Model) -> None:
    engine: Any = model.runner.engine
    with pytest.raises(Interrupted):
        engine.vectors([Tokens([0, 2], [0, 0])], lambda: True)


def test_a_model_that_is_closed_in_the_middle_of_a_run_ends_it_and_refuses_the_next(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = model.runner.engine
    texts, inputs = [Tokens([0, 2], [0, 0])], engine._inputs
    expected = engine.vectors(texts)

    def close_first(batch: list[Tokens]) -> object:
        engine.close()  # as another thread may
        return inputs(batch)

    monkeypatch.setattr(engine, "_inputs", close_first)
    assert np.array_equal(engine.vectors(texts), expected)
    with pytest.raises(ValueError, match="this model was closed"):
        engine.vectors(texts)


def test_texts_of_about_the_same_length_run_together() -> None:
    assert list(batches([2, 9, 4])) == [[1, 2, 0]]
    half = BATCH // 2
    assert list(batches([half, BATCH + 5, half, 1])) == [[1], [0, 2], [3]]
    assert list(batches([])) == []


def test_poolings_by_hand() -> None:
    """Of two tokens [1, 4] and [3, 0]; what is behind them is no number."""
    hidden = np.array([[[1, 4], [3, 0], [np.nan, np.inf]]], np.float32)
    lengths = np.array([2])
    expected = {"cls": [1, 4], "lasttoken": [3, 0], "mean": [2, 2], "max": [3, 4], "weightedmean": [7 / 3, 4 / 3],
                "mean_sqrt_len_tokens": [4 / 2**0.5, 4 / 2**0.5]}  # fmt: skip
    for pooling, values in expected.items():
        assert pooled(hidden, lengths, pooling)[0].tolist() == pytest.approx(values), pooling
