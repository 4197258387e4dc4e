"""BERT, MiniLM, BGE, E5, GTE, mxbai: learned position embeddings, token type embeddings, post-norm layers."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures.config import Config
from embedllm.export.encoders import jina_bert_v2
from embedllm.export.encoders.common import BERT, NAMES, describe_behind, scored
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder


def describe(config: Config) -> Decoder:
    if config.text("position_embedding_type", "absolute") == "alibi":
        return jina_bert_v2.describe(config)
    shape = replace(BERT, names=replace(NAMES, model="bert"))
    return describe_behind(config, shape, types="embeddings.token_type_embeddings")


def scoring(config: Config) -> Encoder:
    return scored(config, "bert.pooler.dense", "classifier")
