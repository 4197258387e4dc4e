"""Tiny BERTs of random tensors, made without torch: checkpoints of an embedding model and of a reranker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.numpy import save_file

from embedllm.export.checkpoints.sentence_transformers import SentenceFolder
from embedllm.export.encoders import describe_encoder
from embedllm.package.architecture.encoder import NamedPrompt
from tests.support.described import RandomSource
from tests.support.encoders import VOCABULARY, write_word_pieces

CONFIG: dict[str, object] = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": VOCABULARY, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 48,
}  # fmt: skip
PROMPTS = {"query": "find ", "document": "", "topic": "sort "}


def write_embedder(folder: Path, *, values: Mapping[str, object] | None = None, tokens: int = 40) -> Path:
    """A checkpoint with sentence-transformers' files: mean pooling, length 1, prompts, and a limit of tokens."""
    _write(folder, {**CONFIG, **(values or {})}, "embed", SentenceFolder(pooling="mean", normalize=True))
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [{"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
              for index, (kind, path) in enumerate(kinds.items())]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": tokens, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return folder


def write_reranker(folder: Path, *, values: Mapping[str, object] | None = None) -> Path:
    """A checkpoint that scores pairs."""
    values = {
        **CONFIG,
        **(values or {}),
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
    }
    _write(folder, values, "rerank", None)
    return folder


def _write(folder: Path, config: Mapping[str, object], task: str, sentences: SentenceFolder | None) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(RandomSource(describe_encoder(config, sentences, task)).tensors, folder / "model.safetensors")
    write_word_pieces(folder)


PROMPTED = tuple(NamedPrompt(name=name, text=text) for name, text in PROMPTS.items())
