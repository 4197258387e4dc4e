"""Checkpoints of models that read whole texts, written as GGUF: what llama.cpp's converters do.

Source: conversion/bert.py of llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tests.support.gguf_files import Config, Tensors, converted, loaded, write_file
from tests.support.gguf_tokenizers import word_piece_metadata

MEAN, CLS, LAST = 1, 2, 3  # of pooling_type
_ARCHITECTURES = {
    "modernbert": "modern-bert",
    "qwen3": "qwen3",
    "gemma3_text": "gemma-embedding",
    "nomic_bert": "nomic-bert",
    "nomic_bert moe": "nomic-bert-moe",
    "bert alibi": "jina-bert-v2",
    "jina_embeddings_v3": "jina-bert-v3",
    "eurobert": "eurobert",
}  # fmt: skip; others are "bert"
_PREFIXES = ("bert.", "distilbert.", "roberta.", "model.")
_LEFT_OUT = ("pooler.dense.", "embeddings.position_ids")
# what some configs call sizes
_OTHER_KEYS = {"dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers",
               "n_heads": "num_attention_heads", "n_embd": "hidden_size", "n_inner": "intermediate_size",
               "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
               "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps"}  # fmt: skip


def write_encoder(
    path: Path,
    folder: Path,
    *,
    kind: str = "F32",
    pooling: int | None = MEAN,
    tokens: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    flat: bool = False,
    denses: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A checkpoint's folder as one GGUF file.

    kind: of the matrices, as gguf calls it. tokens: of the tokenizer; None: those of the folder's WordPiece.
    more: metadata besides; None leaves out. flat: tables of one row are vectors, as llama-quantize writes them.
    denses: matrices behind the pooling, as EmbeddingGemma has them.
    """
    config = json.loads((folder / "config.json").read_text())
    config |= {ours: config[theirs] for theirs, ours in _OTHER_KEYS.items() if theirs in config}
    name = _ARCHITECTURES.get(_kind(config), "bert")
    if tokens is None:
        tokens = word_piece_metadata(Tokenizer.from_file(str(folder / "tokenizer.json")), config["vocab_size"])
    tensors = _prepared(loaded(folder / "model.safetensors"), config)
    said = {f"{name}.{key}": value for key, value in _metadata(config, tensors, name).items()}
    said |= {f"{name}.pooling_type": pooling, **tokens, **(more or {})}
    tensors = converted(tensors, config, name) | {f"{key}.weight": values for key, values in (denses or {}).items()}
    if flat:
        tensors = {key: values.reshape(-1) if values.shape[0] == 1 else values for key, values in tensors.items()}
    return write_file(path, name, said, tensors, kind=kind)


def _kind(config: Config) -> str:
    """The model_type, and what a config that shares it has besides."""
    if config.get("position_embedding_type") == "alibi":
        return "bert alibi"
    return f"{config['model_type']} moe" if config.get("moe_every_n_layers") else str(config["model_type"])


def _prepared(tensors: Tensors, config: Config) -> Tensors:
    """Under the names that are looked up, without the rows in front of RoBERTa's first position."""
    found: Tensors = {}
    for source, values in tensors.items():
        place = next((source.removeprefix(prefix) for prefix in _PREFIXES if source.startswith(prefix)), source)
        if config["model_type"] in ("qwen3", "gemma3_text", "eurobert"):
            place = f"model.{place}"
        if "roberta" in config["model_type"] and place == "embeddings.position_embeddings.weight":
            values = values[config["pad_token_id"] + 1 :]
        if config["model_type"] in ("modernbert", "bert") and place.startswith("classifier."):
            place = place.replace("classifier.", "classifier.out_proj.")
        if place.endswith("experts.bias"):
            continue
        if place.endswith((".w1", ".w2")):  # a stack of matrices, the second ones transposed
            stack = values.reshape(config["num_experts"], -1, values.shape[-1])
            place, values = f"{place}.weight", stack if place.endswith(".w1") else stack.swapaxes(1, 2)
        if not place.startswith(_LEFT_OUT):
            found[place] = values
    return found


def _metadata(config: Config, tensors: Tensors, name: str) -> dict[str, Any]:
    positions, ropes = tensors.get("embeddings.position_embeddings.weight"), config.get("rope_parameters") or {}
    found: dict[str, Any] = {
        "context_length": config["max_position_embeddings"] if positions is None else len(positions),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", config.get("norm_eps", 1e-12)),
        "attention.causal": name == "qwen3",
    }
    if name in ("qwen3", "gemma-embedding"):
        rope = ropes.get("full_attention", ropes)
        del found["attention.layer_norm_epsilon"]
        found |= {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.freq_base": rope["rope_theta"],
                  "attention.head_count_kv": config["num_key_value_heads"], "attention.key_length": config["head_dim"],
                  "attention.value_length": config["head_dim"]}  # fmt: skip
    if name in ("nomic-bert", "jina-bert-v3", "eurobert"):
        found["rope.freq_base"] = ropes["rope_theta"]
    if name == "nomic-bert-moe":
        found |= {"rope.freq_base": float(config["rotary_emb_base"]), "expert_count": config["num_experts"],
                  "expert_used_count": config["moe_top_k"],
                  "moe_every_n_layers": config["moe_every_n_layers"]}  # fmt: skip
    if name == "eurobert":
        del found["attention.layer_norm_epsilon"]
        found |= {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.scaling.type": "none",
                  "attention.head_count_kv": config["num_key_value_heads"]}  # fmt: skip
    if name == "gemma-embedding":
        kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
        found |= {"attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": kinds,
                  "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"]}  # fmt: skip
    if name == "modern-bert":
        found |= {"attention.sliding_window": config["local_attention"], "rope.scaling.type": "none",
                  "attention.sliding_window_pattern": config["global_attn_every_n_layers"],
                  "rope.freq_base": ropes["full_attention"]["rope_theta"],
                  "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
                  "vocab_size": config["vocab_size"],
                  "classifier.pooling_type": {"mean": MEAN, "cls": CLS}[config["classifier_pooling"]],
                  "hidden_activation": None if config["hidden_activation"] == "gelu" else "silu"}  # fmt: skip
    return found
