"""Qwen3-Embedding: Qwen 3 with last-token pooling."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures import qwen3
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder


def describe(config: Config) -> Decoder:
    decoder = qwen3.describe(config)
    return replace(decoder, head=decoder.embedding, encoder=Encoder(pooling="lasttoken", causal=True, normalize=True))
