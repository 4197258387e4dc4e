"""Jina Embeddings v3, without its adapters: XLM-RoBERTa with RoPE in place of learned positions."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import BERT, describe_behind
from embedllm.export.encoders.nomic_bert import NAMES
from embedllm.package.architecture.decoder import Decoder

_NAMES = replace(NAMES, model="roberta", qkv="mixer.Wqkv", o="mixer.out_proj", gate="", up="mlp.fc1")
_SHAPE = replace(BERT, names=_NAMES, has_rope=True, rope_keys=RopeKeys(theta=20_000.0))


def describe(config: Config) -> Decoder:
    return describe_behind(
        config.filled({"layer_norm_eps": 1e-5}),
        replace(_SHAPE, model_type="jina_embeddings_v3"),
        types="embeddings.token_type_embeddings",
        first="emb_ln",
        rows=1,
    )
