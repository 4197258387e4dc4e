"""XLM-RoBERTa, BGE-M3, multilingual E5, Arctic Embed 2, BGE's rerankers: RoBERTa for many languages."""

from __future__ import annotations

from embedllm.export.config import Config
from embedllm.export.decoder import Decoder, Encoder
from embedllm.export.encoders import roberta


def describe(config: Config) -> Decoder:
    return roberta.describe_roberta(config, "xlm-roberta")


def scoring(config: Config) -> Encoder:
    return roberta.scoring(config)
