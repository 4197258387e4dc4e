"""Apertus 1.5, the text decoder alone: Apertus; its head writes text only, not the codes of images and audio."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures import apertus
from embedllm.export.architectures._shared.parts import Names
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Origin


def describe(config: Config) -> Decoder:
    return describe_text(config, "apertus1p5_text", apertus.NAMES)


def describe_text(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder, where its tensors have these names, without the codes, which it could read and not write."""
    decoder = apertus.describe_text(config, model_type, names)
    all_tokens = decoder.vocabulary
    tokens = config.integer_or_none("output_vocab_size", None) or all_tokens
    if tokens == all_tokens:
        return decoder
    if tokens > all_tokens or decoder.head == decoder.embedding:
        raise UnsupportedModel(
            f"output_vocab_size is {tokens}; expected a head of its own, of at most the {all_tokens} tokens of the "
            "embedding."
        )
    embedding = replace(decoder.embedding, rows=tokens, origin=Origin(rows=all_tokens))
    return replace(decoder, embedding=embedding, head=replace(decoder.head, rows=tokens))
