"""Models in GGUF that read whole texts: their architectures, what their vectors are made of, and their own tensors.

Source: conversion/bert.py and src/models/ of llama.cpp; MODEL_TENSORS of the Python package gguf 0.19.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.sentence_transformers import SentenceFolder
from embedllm.export.gguf.families import Family
from embedllm.export.gguf.keys import LOCAL_BASE, PATTERN, POOLING, WINDOW
from embedllm.package.architecture.encoder import Dense
from embedllm.package.architecture.weights import Linear

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import GgufModel

_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}  # values of POOLING, and what an Encoder calls them
_SCORES = 4
_SCORE, _TYPES, _POSITIONS = "cls.output.weight", "token_types.weight", "position_embd.weight"
_DENSES = ("dense_2", "dense_3")  # of sentence-transformers, without biases
_ACTIVATION = "hidden_activation"  # of the gate of a ModernBERT; older files are of models with GELU
_EVERY = "moe_every_n_layers"  # has experts, of Nomic Embed 2
_SCORE_POOLING = "classifier.pooling_type"  # in front of the score, of a ModernBERT
_GIVEN = (POOLING, "classifier.output_labels")


def _bert(own: Config, names: Collection[str]) -> Mapping[str, object]:
    """Without rows for the parts of a pair it is DistilBERT, which has other keys."""
    if _TYPES in names:
        return {}
    sizes = {"dim": "embedding_length", "hidden_dim": "feed_forward_length", "n_layers": "block_count",
             "n_heads": "attention.head_count"}  # fmt: skip
    return {"model_type": "distilbert", **{theirs: own.integer(key) for theirs, key in sizes.items()}}


def _modern_bert(own: Config, names: Collection[str]) -> Mapping[str, object]:
    """Rerankers whose file does not say it look at the mean of all tokens, as llama.cpp takes it for granted."""
    every = own.integer(PATTERN, 3)  # of layers without a window the first, and then each so-manieth
    kinds = ["sliding_attention" if index % every else "full_attention" for index in range(own.integer("block_count"))]
    config: dict[str, object] = {
        "layer_types": kinds,
        "local_attention": own.integer(WINDOW[0]),
        "norm_bias": "output_norm.bias" in names,
        "classifier_pooling": _POOLINGS.get(pooling := own.integer(_SCORE_POOLING, 1), str(pooling)),
        "hidden_activation": own.text(_ACTIVATION, "gelu"),
        "classifier_bias": "cls.bias" in names,
    }
    for theirs, key in (("global_rope_theta", "rope.freq_base"), ("local_rope_theta", LOCAL_BASE)):
        if own.has(key):
            config[theirs] = own.number(key, above=1)
    return config


def _nomic_moe(own: Config, names: Collection[str]) -> Mapping[str, object]:
    """The bias that experts share is left out of such files, as llama.cpp leaves it out."""
    return {
        "moe_every_n_layers": own.integer(_EVERY),
        "moe_top_k": own.integer("expert_used_count"),
        "hidden_act": "gelu",
        "experts_bias": False,
    }


def _gemma(own: Config, names: Collection[str]) -> Mapping[str, object]:
    return {"use_bidirectional_attention": True, "query_pre_attn_scalar": own.integer("attention.key_length")}


ENCODERS: Mapping[str, Family] = {
    "bert": Family(model_type="bert", causal=False, keys=_GIVEN, more=_bert),
    "modern-bert": Family(
        model_type="modernbert",
        causal=False,
        keys=(*_GIVEN, *WINDOW, LOCAL_BASE, _ACTIVATION, _SCORE_POOLING),
        more=_modern_bert,
    ),
    "nomic-bert": Family(model_type="nomic_bert", causal=False, keys=_GIVEN),
    "nomic-bert-moe": Family(
        model_type="nomic_bert",
        causal=False,
        keys=(*_GIVEN, "expert_count", "expert_used_count", _EVERY),
        more=_nomic_moe,
    ),
    "jina-bert-v2": Family(model_type="jina_bert_v2", causal=False, keys=_GIVEN),
    "jina-bert-v3": Family(model_type="jina_embeddings_v3", causal=False, keys=_GIVEN),
    "eurobert": Family(model_type="eurobert", causal=False, keys=_GIVEN),
    "gemma-embedding": Family(
        model_type="gemma3_text",
        causal=False,
        more=_gemma,
        keys=(
            POOLING,
            *WINDOW,
            LOCAL_BASE,
            *(f"{dense}_feat_{end}" for dense in _DENSES for end in ("in", "out")),
        ),
    ),
}


def table_sizes(model: GgufModel) -> dict[str, object]:
    """What config.json says of tables of which only the tensors tell the rows; a vector is a table of one."""
    keys = {_TYPES: "type_vocab_size", _POSITIONS: "max_position_embeddings", _SCORE: "num_labels"}
    shapes = {key: model.tensors[name].shape for name, key in keys.items() if name in model.tensors}
    return {"num_labels": 1, **{key: shape[0] if len(shape) > 1 else 1 for key, shape in shapes.items()}}


def task_of(model: GgufModel, family: Family) -> str:
    """What a model is for: one of encoders.TASKS."""
    if _SCORE in model.tensors or _pooling(model) == _SCORES:
        return "rerank"
    return "embed" if not family.causal or _pooling(model) else "chat"  # 0: of no text a vector is made


def sentences_of(model: GgufModel) -> SentenceFolder:
    """What becomes of the vectors of tokens. They get the length 1, as llama.cpp gives them: the file does not say it.

    Raises UnsupportedModel for vectors of each token.
    """
    pooling = _pooling(model)
    if pooling is not None and pooling not in _POOLINGS:
        raise UnsupportedModel(
            f"'{model.path}' makes of the vectors of tokens what '{POOLING}' {pooling!r} stands for; known: "
            f"{', '.join(f'{value} ({name})' for value, name in _POOLINGS.items())}."
        )
    names = [name for name in _DENSES if f"{name}.weight" in model.tensors]
    denses = tuple(_dense(model, index, name) for index, name in enumerate(names))
    return SentenceFolder(pooling="" if pooling is None else _POOLINGS[pooling], denses=denses, normalize=True)


def _dense(model: GgufModel, index: int, name: str) -> Dense:
    rows, *columns = model.tensors[f"{name}.weight"].shape
    linear = Linear(name=f"steps.{index}", source=name, rows=rows, columns=math.prod(columns), bias=False)
    return Dense(linear=linear)


def _pooling(model: GgufModel) -> int | None:
    """As the file says it; None where it does not."""
    value = model.metadata.get(f"{model.metadata['general.architecture']}.{POOLING}")
    return value if type(value) is int else None
