"""Jina Embeddings v2, Jina reranker v1: BERT with ALiBi in place of learned positions, and a gated MLP.

Their config.json calls them 'bert'. Source: jinaai/jina-bert-implementation, and JinaBertV2Model of llama.cpp.
"""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import BERT, NAMES, describe_behind, scored
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.position_bias import Alibi

_NAMES = replace(NAMES, model="bert", positions="", gate_up="mlp.gated_layers", down="mlp.wo", mlp_norm="mlp.layernorm")
_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}  # by 'feed_forward_type'


def describe(config: Config) -> Decoder:
    kind = config.text("feed_forward_type", "geglu")
    if kind not in _ACTIVATIONS:
        raise UnsupportedModel(f"feed_forward_type is '{kind}'; expected {' or '.join(_ACTIVATIONS)}.")
    if "qk-post-norm" in f"{config.value('_name_or_path')} {config.value('auto_map')}":
        raise UnsupportedModel("a Jina Embeddings v2 with norms of queries and keys (code), which is not described.")
    decoder = describe_behind(
        config.replaced({"position_embedding_type": "absolute", "hidden_act": _ACTIVATIONS[kind]}),
        replace(BERT, model_type="jina_bert_v2", names=_NAMES, mlp_bias=False),
        types="embeddings.token_type_embeddings",
    )
    assert decoder.encoder is not None
    return replace(
        decoder,
        layers=tuple(_with_bias(layer) for layer in decoder.layers),
        encoder=replace(decoder.encoder, position_bias=Alibi()),
    )


def scoring(config: Config) -> Encoder:
    return scored(config, "bert.pooler.dense", "classifier")


def _with_bias(layer: Layer) -> Layer:
    """Of the gated MLP only the last matrix has a bias."""
    assert isinstance(layer.mlp, Mlp)
    return replace(layer, mlp=replace(layer.mlp, down=replace(layer.mlp.down, bias=True)))
