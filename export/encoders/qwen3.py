"""Qwen3-Embedding: Qwen 3 with last-token pooling."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures import qwen3
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder


def describe(config: Config) -> Decoder:
    decoder, is_causal = qwen3.describe(config), config.flag("is_causal", True)
    if not is_causal and any(attention.window for attention in decoder.attentions):
        raise UnsupportedModel("is_causal is false: sliding windows to both sides are not described.")
    encoder = Encoder(pooling="lasttoken", causal=is_causal, normalize=True)
    return replace(decoder, head=decoder.embedding, encoder=encoder)
