"""Models in GGUF against the checkpoints they were made from: the same description, values and tokens."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.checkpoints.tensor_mapping import check_matrix, check_vector, read_matrix, read_vector
from embedllm.export.gguf.source import GgufSource, unfused
from embedllm.export.gguf.tokenizers.vocabulary import USER_DEFINED
from embedllm.hub.location import Location
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Linear
from embedllm.package.package import open_package
from embedllm.package.tensors import linears, small_matrices, tables, vectors
from tests.support.families import FAMILIES, KEYS_AS_VALUES, YARN, make_checkpoint
from tests.support.gguf_files import tokens, write_gguf
from tests.support.tiny import tiny_checkpoint

ONE_SCALE = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}  # files have one for both, as all published models
CASES: dict[str, dict[str, object]] = {
    **{name: {} for name in (
        "mistral", "mixtral", "qwen3", "qwen3_moe", "gemma", "phi3", "phi3 longrope", "granite", "olmo2", "exaone4",
        "exaone4 small", "arcee", "seed_oss", "cohere", "cohere2", "glm4", "stablelm", "stablelm parallel",
        "starcoder2", "olmo", "olmoe", "phi", "ernie4_5", "gpt_neox", "gpt_neox in turn", "nemotron", "granitemoe",
        "granitemoeshared", "gpt2", "internlm2", "deepseek_v2 lite", "glm4_moe", "glm", "jais2", "ministral3", "olmo3",
        "exaone_moe", "lfm2", "lfm2 biases", "lfm2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "minimax_m2",
        "gemma3n_text", "gemma4_text", "granitemoehybrid", "nemotron_h")},
    "granitemoehybrid dense": {"position_embedding_type": "nope"},  # as all published models
    "nemotron_h experts": {"n_group": 1, "topk_group": 1},
    "falcon_h1": {"embedding_multiplier": 1.0, "lm_head_multiplier": 1.0},  # files have them in the tensors
    "falcon_h1 norm": {"embedding_multiplier": 1.0, "lm_head_multiplier": 1.0, "tie_word_embeddings": False},
    "gemma4_text keys as values": {**KEYS_AS_VALUES, "num_kv_shared_layers": 0},
    "gemma4_text experts": {},
    "exaone biases": {"attention_bias": False, "mlp_bias": False},  # as all published models
    "gpt_oss": {"swiglu_limit": 7.0},  # files say nothing of it
    "gpt_oss plain": {"swiglu_limit": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "deepseek_v2": {"attention_bias": False, "rope_parameters": ONE_SCALE},
    "deepseek_v3": {"rope_parameters": ONE_SCALE},
    "dots1": {"sliding_window": None},
    "ernie4_5_moe": {},
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},  # as it is stretched already
    "hunyuan_v1_moe": {"moe_topk": [2, 2]},
    "llama": {"head_dim": ...},
    "llama4_text": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "attention_chunk_size": 8192,
                    "floor_scale": 8192, "attn_scale": 0.1,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "qwen2": {"use_sliding_window": False},
    "qwen3 tied": {"tie_word_embeddings": True},
    "qwen2_moe": {"mlp_only_layers": []},
    "gemma2": {"query_pre_attn_scalar": 16},  # of models of fewer layers than the largest: that of a head
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "smollm3": {"use_sliding_window": False, "no_rope_layers": [1, 1]},
}  # fmt: skip


def source_of(folder: Path) -> HuggingFaceSource:
    return HuggingFaceSource(Location(folder, folder.name))


@pytest.mark.peer
@pytest.mark.parametrize("name", CASES)
def test_a_model_of_each_architecture_is_that_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    case = FAMILIES.get(name) or FAMILIES[name.partition(" ")[0]]
    make_checkpoint(tmp_path, dataclasses.replace(case, values={**case.values, **CASES[name]}))
    theirs = source_of(tmp_path)
    ours = GgufSource(write_gguf(tmp_path / "m.gguf", tmp_path))
    try:
        expected = describe(Config(theirs.config))
        found, tensors = ours.tensors(describe(Config(ours.config)))
        assert without_names(found) == without_names(unfused(expected))
        for linear, other in zip(matrices(found), matrices(expected), strict=True):
            check_matrix(tensors, linear)
            wanted = read_matrix(theirs, other, 1, linear.rows)
            assert np.array_equal(read_matrix(tensors, linear, 1, linear.rows), wanted), linear.source
        for vector, other in zip(vectors(found), vectors(expected), strict=True):
            check_vector(tensors, vector)
            values, wanted = read_vector(tensors, vector), read_vector(theirs, other)
            if vector.name.endswith(".log_decay"):  # files have its exponential, rounded to float32
                np.testing.assert_allclose(values, wanted, atol=1e-6, rtol=0)
            else:
                assert np.array_equal(values, wanted), vector.source
    finally:
        ours.close()
        theirs.close()


def matrices(decoder: Decoder) -> list[Linear]:
    layers = [linear for layer in decoder.layers for linear in linears(layer)]
    return [*layers, *tables(decoder), decoder.head, *small_matrices(decoder)]


def without_names(decoder: Decoder) -> Decoder:
    return dataclasses.replace(decoder, model_type="")


@pytest.mark.peer
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox", "qwen3_5_moe_text", "falcon_h1", "nemotron_h"])
def test_logits_of_an_exported_file_follow_transformers(name: str, tmp_path: Path) -> None:
    """Of rows that were turned, of norms that hold their one, of regrouped q, k and v, and of states."""
    torch = pytest.importorskip("torch")
    case = FAMILIES[name]
    model = make_checkpoint(tmp_path, dataclasses.replace(case, values={**case.values, **CASES[name]}))
    file = write_gguf(tmp_path / "m.gguf", tmp_path)
    folder = convert(file, tmp_path / "out", Recipe(bits=32, head_bits=32, embedding_bits=32))
    tokens = [5, 301, 17, 44, 9, 300, 21, 250, 3, 77, 12, 150]
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0].numpy()
    engine = ReferenceEngine(open_package(folder))
    with contextlib.closing(engine):
        ours = engine.open().feed_all(tokens)
    assert np.abs(ours - theirs).max() <= 1e-3 * theirs.std()


def test_replies_end_where_those_of_the_checkpoint_do(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama", eos_token_id=1)
    (checkpoint / "generation_config.json").unlink()
    sources = (checkpoint, write_gguf(tmp_path / "m.gguf", checkpoint))
    packages = [convert(source, tmp_path / source.name[0], Recipe(method="nearest")) for source in sources]
    assert [open_package(package).stop_tokens for package in packages] == [(1, 2, 0), (0, 1, 2)]


def test_tokens_without_a_row_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    said = tokens(checkpoint, "gpt-2")
    more = {"tokenizer.ggml.tokens": [*said["tokenizer.ggml.tokens"], "<note>"],
            "tokenizer.ggml.token_type": [*said["tokenizer.ggml.token_type"], USER_DEFINED],
            "llama.vocab_size": 307}  # fmt: skip
    convert(write_gguf(tmp_path / "m.gguf", checkpoint, more=more), tmp_path / "package", Recipe(method="nearest"))
    assert "embedding rows for 307: a prompt with '<note>' (307) will be refused" in caplog.text
