"""XLM-RoBERTa, BGE-M3, multilingual E5, Arctic Embed 2, BGE's rerankers: multilingual RoBERTa."""

from __future__ import annotations

from embedllm.export.architectures.config import Config
from embedllm.export.encoders import roberta
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder


def describe(config: Config) -> Decoder:
    return roberta.describe_roberta(config, "xlm-roberta")


def scoring(config: Config) -> Encoder:
    return roberta.scoring(config)
