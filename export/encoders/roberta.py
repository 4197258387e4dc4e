"""RoBERTa, its sentence models: BERT, whose positions start behind the padding's."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import BERT, NAMES, describe_behind, scored
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder


def describe(config: Config) -> Decoder:
    return describe_roberta(config, "roberta")


def describe_roberta(config: Config, model_type: str) -> Decoder:
    """The model of a config.json that is RoBERTa's in all but its model_type."""
    start = config.integer("pad_token_id", 1, least=0) + 1
    names = replace(NAMES, model="roberta")
    shape = replace(BERT, model_type=model_type, names=names, positions_start=start)
    return describe_behind(config, shape, types="embeddings.token_type_embeddings")


def scoring(config: Config) -> Encoder:
    return scored(config, "classifier.dense", "classifier.out_proj")
