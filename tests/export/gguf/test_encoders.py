"""GGUF files of models that embed or score texts against the checkpoints that they were made from."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

import embedllm
from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.export.describe import describe_checkpoint
from embedllm.export.encoders import describe_encoder
from embedllm.export.gguf.reader import read_model
from embedllm.export.gguf.source import GgufSource
from embedllm.export.open_source import open_source
from embedllm.export.writing.plan import plan
from embedllm.export.writing.stream import check_source
from embedllm.package.package import open_package
from embedllm.text.tokenizer import Tokenizer as Texts
from tests.support.described import RandomSource
from tests.support.encoder_folders import CONFIG, write_embedder
from tests.support.encoders import ENCODERS, TEXTS, Case, make_checkpoint, zero_experts_bias
from tests.support.gguf_bytes import damaged
from tests.support.gguf_encoders import CLS, LAST, MEAN, write_encoder
from tests.support.gguf_files import Tensors, loaded, write_gguf
from tests.support.gguf_tokenizers import train_unigram, train_word_piece, unigram_metadata, word_piece_metadata
from tests.support.tiny import tiny_checkpoint

if TYPE_CHECKING:
    from embedllm.types import F32

FLOATS = Recipe(bits=32, head_bits=32, embedding_bits=32)
SHORT = [text[:30] for text in TEXTS]


def vectors(folder: Path, device: str = "cpu", texts: list[str] = SHORT) -> F32:
    with embedllm.load(folder, device=device, exact=True) as model:
        return model.embed(texts)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    return write_embedder(tmp_path_factory.mktemp("bert") / "checkpoint", values=sizes, tokens=48)


def test_vectors_are_those_of_the_checkpoint_bit_for_bit(checkpoint: Path, tmp_path: Path) -> None:
    file = write_encoder(tmp_path / "m.gguf", checkpoint)
    ours, theirs = convert(file, tmp_path / "ours", FLOATS), convert(checkpoint, tmp_path / "theirs", FLOATS)
    found = vectors(ours)
    assert np.array_equal(found, vectors(theirs))
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-6
    assert open_package(ours).context == open_package(theirs).context


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_quantized_matrices_are_carried_over(kind: str, checkpoint: Path, tmp_path: Path) -> None:
    """As a checkpoint of the floats that they stand for."""
    ours = convert(write_encoder(tmp_path / "m.gguf", checkpoint, kind=kind), tmp_path / "ours", Recipe(exact=True))
    stored = gguf.GGMLQuantizationType[kind]

    def floats(values: np.ndarray) -> np.ndarray:
        return gguf.dequantize(gguf.quantize(values, stored), stored) if values.ndim > 1 else values

    meant = tmp_path / "meant"
    meant.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (meant / name).write_bytes((checkpoint / name).read_bytes())
    tensors = loaded(checkpoint / "model.safetensors")
    save_file({name: floats(values) for name, values in tensors.items()}, meant / "model.safetensors")
    expected = vectors(convert(write_encoder(tmp_path / "f.gguf", meant), tmp_path / "theirs", FLOATS), "reference")
    for device in ("cpu", "openvino", "reference"):
        assert np.abs(vectors(ours, device) - expected).max() < 1e-5, device


def test_a_file_is_loaded_as_it_is(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")
    file = write_encoder(tmp_path / "m.gguf", checkpoint, kind="Q8_0")
    with embedllm.load(file, device="cpu") as model:
        assert model.embed(SHORT).shape == (len(SHORT), 64)
        with pytest.raises(ValueError, match="is an embedding model"):
            model.generate("x")


@pytest.mark.parametrize(("value", "pooling"), [(MEAN, "mean"), (CLS, "cls"), (LAST, "lasttoken"), (None, "mean")])
def test_the_pooling_is_what_the_file_says(value: int | None, pooling: str, checkpoint: Path, tmp_path: Path) -> None:
    folder = convert(write_encoder(tmp_path / "m.gguf", checkpoint, pooling=value), tmp_path / "out")
    encoder = open_package(folder).encoder
    assert encoder is not None
    assert (encoder.pooling, encoder.normalize, encoder.causal) == (pooling, True, False)


def write_roberta(folder: Path) -> tuple[Path, Tokenizer]:
    """XLM-RoBERTa of random tensors, with a unigram tokenizer trained here."""
    tokenizer = train_unigram()
    config = {**CONFIG, "model_type": "xlm-roberta", "vocab_size": tokenizer.get_vocab_size(), "pad_token_id": 1,
              "type_vocab_size": 1, "max_position_embeddings": 50}  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = RandomSource(describe_encoder(config, None, "embed")).tensors
    save_file(tensors, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, tokenizer


@pytest.mark.parametrize("flat", [True, False])
def test_xlm_roberta_has_its_unigram_and_no_rows_before_its_first_position(*, flat: bool, tmp_path: Path) -> None:
    folder, tokenizer = write_roberta(tmp_path / "checkpoint")
    file = write_encoder(tmp_path / "m.gguf", folder, tokens=unigram_metadata(tokenizer), flat=flat)
    ours, theirs = convert(file, tmp_path / "ours", FLOATS), convert(folder, tmp_path / "theirs", FLOATS)
    texts = ["  Licensed  work ", "ﬁne がぎ 123", "naïve café"]
    lengths = np.linalg.norm(expected := vectors(theirs, texts=texts), axis=1, keepdims=True)
    assert np.array_equal(vectors(ours, texts=texts), expected / lengths)
    assert open_package(ours).context == open_package(theirs).context


@pytest.mark.parametrize(("said", "task", "error", "message"), [
    ({"bert.pooling_type": 0}, None, UnsupportedModel, r"what 'pooling_type' 0 stands for; known: 1 \(mean\), 2"),
    ({"bert.pooling_type": 4}, None, ExportError, "has no tensor 'cls.weight'"),
    ({"bert.attention.causal": True}, None, UnsupportedModel, "reads texts otherwise than its architecture does"),
    ({"bert.expert_count": 8}, None, UnsupportedModel, "says 'bert.expert_count', which is not known here"),
    ({}, "rerank", ExportError, "'m.gguf' is a model to embed by what the file says and holds"),
    ({}, "chat", UnsupportedModel, "model_type 'bert'"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(
    said: dict[str, Any], task: str | None, error: type[Exception], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    file = write_encoder(tmp_path / "m.gguf", checkpoint, more=said)
    with pytest.raises(error, match=message):
        convert(file, tmp_path / "out", task=task)
    assert not (tmp_path / "out").exists()


def test_metadata_of_any_values_is_refused_or_read(tmp_path: Path) -> None:
    folder, tokenizer = write_roberta(tmp_path / "checkpoint")
    tokens, rng, refused = unigram_metadata(tokenizer), random.Random(0), 0
    own = ("pooling_type", "context_length", "embedding_length", "block_count", "attention.head_count",
           "attention.causal")  # fmt: skip
    keys = [*tokens, *(f"bert.{key}" for key in own), "tokenizer.ggml.merges"]
    for _ in range(60):
        file = write_encoder(tmp_path / "m.gguf", folder, tokens=tokens, more=damaged(rng, keys))
        try:
            _, source = open_source(file)
            try:
                decoder, tensors = describe_checkpoint(source, context=None, task=None)
                check_source(tensors, plan(decoder, FLOATS))
            finally:
                source.close()
        except ExportError:
            refused += 1
    assert 15 < refused < 60


def test_a_model_that_generates_text_has_no_vectors(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama", "llama")
    file = write_gguf(tmp_path / "m.gguf", folder)
    with pytest.raises(ExportError, match="is a model to chat by what the file says and holds, and has nothing to emb"):
        convert(file, tmp_path / "out", task="embed")


@pytest.mark.parametrize(("pooling", "task"), [(None, "chat"), (0, "chat"), (LAST, "embed"), (4, "rerank")])
def test_a_family_that_does_both_does_what_the_file_says(pooling: int | None, task: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "qwen3", "qwen3")
    source = GgufSource(write_gguf(tmp_path / "m.gguf", folder, more={"qwen3.pooling_type": pooling}))
    source.close()
    assert source.task == task


def test_a_head_that_vectors_do_not_pass_is_left_out(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "qwen3", "qwen3", tie_word_embeddings=False)
    said = {"qwen3.pooling_type": LAST}
    file = write_gguf(tmp_path / "m.gguf", folder, more=said)
    assert "output.weight" in read_model(file).tensors

    def without(tensors: Tensors) -> Tensors:
        return {name: values for name, values in tensors.items() if name != "output.weight"}

    bare = write_gguf(tmp_path / "bare.gguf", folder, more=said, change=without)
    found, expected = (vectors(convert(each, tmp_path / f"of {each.stem}", FLOATS)) for each in (file, bare))
    assert np.array_equal(found, expected)


def _case(name: str, pooling: str = "mean") -> Case:
    """Without what GGUF does not hold: other activations, matrices behind the pooling, a score as it is."""
    case = ENCODERS[name]
    values = {key: value for key, value in case.values.items() if key != "hidden_act"}
    if case.scores:
        values |= {"classifier_pooling": "mean"} if case.family == "modernbert" else {}
        return dataclasses.replace(case, values=values, said={})
    return dataclasses.replace(case, values=values, pooling=pooling, denses=(), normalised=True)


POOLINGS = {"mean": MEAN, "cls": CLS, "lasttoken": LAST, "": None}
CASES = {
    "bert": _case("bert"),
    "bert of the first token": _case("bert-cls", "cls"),
    "roberta": _case("roberta"),
    "xlm-roberta": _case("xlm-roberta", "cls"),
    "distilbert": _case("distilbert"),
    "modernbert": _case("modernbert"),
    "modernbert-biased": _case("modernbert-biased", "cls"),
    "modernbert-silu": dataclasses.replace(
        _case("modernbert"), values={**ENCODERS["modernbert"].values, "hidden_activation": "silu"}
    ),
    "qwen3": _case("qwen3", "lasttoken"),
    **{name: _case(name) for name in ("nomic_bert", "nomic_bert-moe", "jina_embeddings_v3", "jina_bert_v2")},
    "eurobert": _case("eurobert", "lasttoken"),
    "gemma3_text": dataclasses.replace(
        _case("gemma3_text"), values={**ENCODERS["gemma3_text"].values, "query_pre_attn_scalar": 16}
    ),
}
SCORED = {name: _case(name) for name in ("roberta-scored", "xlm-roberta-scored", "modernbert-scored")}
SCORED["modernbert of the first token"] = dataclasses.replace(
    SCORED["modernbert-scored"], values={**SCORED["modernbert-scored"].values, "classifier_pooling": "cls"}
)


@pytest.mark.peer
@pytest.mark.parametrize("name", CASES)
def test_vectors_of_each_architecture_follow_transformers(name: str, tmp_path: Path) -> None:
    """And are those of the checkpoint's export bit for bit."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    case = CASES[name]
    model = make_checkpoint(tmp_path / "checkpoint", case)
    if name == "nomic_bert-moe":
        zero_experts_bias(model)
        model.save_pretrained(tmp_path / "checkpoint")
    file = write_encoder(tmp_path / "m.gguf", tmp_path / "checkpoint", pooling=POOLINGS[case.pooling])
    ours = convert(file, tmp_path / "ours", FLOATS)
    found = vectors(ours, texts=list(TEXTS))
    theirs = vectors(convert(tmp_path / "checkpoint", tmp_path / "theirs", FLOATS), texts=list(TEXTS))
    assert np.array_equal(found, theirs)
    pools: dict[str, Callable[[Any], Any]] = {
        "mean": lambda x: x.mean(0),
        "cls": lambda x: x[0],
        "lasttoken": lambda x: x[-1],
    }
    tokenizer = Texts.open(ours)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            vectors_of_tokens = model(input_ids=torch.tensor([tokenizer.encode(text, special=True)]))[0][0]
        expected = pools[case.pooling](vectors_of_tokens)
        assert np.abs(vector - (expected / expected.norm()).numpy()).max() < 1e-5


@pytest.mark.peer
def test_matrices_behind_the_pooling_are_those_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    make_checkpoint(tmp_path / "checkpoint", CASES["gemma3_text"])
    random = np.random.default_rng(0)
    denses = {
        f"dense_{2 + at}": random.standard_normal(shape).astype(np.float32)
        for at, shape in enumerate([(128, 64), (48, 128)])
    }
    found = []
    for held in ({}, denses):
        folder = convert(
            write_encoder(tmp_path / f"{len(held)}.gguf", tmp_path / "checkpoint", denses=held),
            tmp_path / f"of {len(held)}",
            FLOATS,
        )
        with embedllm.load(folder, device="cpu", exact=True) as model:
            found.append(model.embed(list(TEXTS), normalize=False))
    expected = found[0] @ denses["dense_2"].T @ denses["dense_3"].T
    assert np.abs(found[1] - expected).max() < 1e-4 * expected.std()


@pytest.mark.peer
@pytest.mark.parametrize("name", SCORED)
def test_scores_of_each_architecture_are_those_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    make_checkpoint(tmp_path / "checkpoint", SCORED[name])
    file = write_encoder(tmp_path / "m.gguf", tmp_path / "checkpoint", pooling=None, flat=True)
    found = []
    for source in (file, tmp_path / "checkpoint"):
        with embedllm.load(convert(source, tmp_path / f"of {source.name}", FLOATS), device="cpu", exact=True) as model:
            found.append(model.rerank("sea shells", list(TEXTS)))
    assert found[0] == found[1]
    assert len({one.score for one in found[0]}) == len(TEXTS)


@pytest.mark.peer
@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "distilbert", "modernbert", "qwen3", "gemma3_text"])
def test_llama_cpp_gives_the_same_of_one_file(name: str, tmp_path: Path) -> None:
    """Tokens, and vectors as near as its own tanh form of GELU is."""
    llama_cpp: Any = pytest.importorskip("llama_cpp")
    tokenizer = train_unigram() if name == "xlm-roberta" else train_word_piece(lowercase=True)
    tokens = unigram_metadata(tokenizer) if name == "xlm-roberta" else word_piece_metadata(tokenizer)
    case = CASES[name]
    values = {**case.values, "vocab_size": tokenizer.get_vocab_size()}
    make_checkpoint(tmp_path / "checkpoint", dataclasses.replace(case, values=values))
    pooling = POOLINGS[case.pooling]
    file = write_encoder(tmp_path / "m.gguf", tmp_path / "checkpoint", tokens=tokens, pooling=pooling)
    texts = ["The License is granted to you, naïve café!", "東京は日本の首都です。 x", "  free of charge  "]
    ours = convert(file, tmp_path / "out", FLOATS)
    theirs = llama_cpp.Llama(str(file), embedding=True, verbose=False, n_ctx=128, n_batch=128)
    for text, vector in zip(texts, vectors(ours, texts=texts), strict=True):
        ids = Texts.open(ours).encode(text, special=True)
        assert theirs.tokenize(text.encode(), add_bos=True, special=False) == ids
        assert np.abs(np.array(theirs.embed(text, normalize=True)) - vector).max() < 1e-3
    theirs.close()
