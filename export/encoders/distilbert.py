"""DistilBERT, its sentence models: BERT without token type embeddings, under other names."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import BERT, NAMES, describe_behind
from embedllm.package.architecture.decoder import Decoder

_NAMES = replace(
    NAMES, model="distilbert", layers="transformer.layer", attention_norm="sa_layer_norm",
    mlp_norm="output_layer_norm", q="attention.q_lin", k="attention.k_lin", v="attention.v_lin",
    o="attention.out_lin", up="ffn.lin1", down="ffn.lin2",
)  # fmt: skip
_KEYS = {"hidden_size": "dim", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers",
         "num_attention_heads": "n_heads", "hidden_act": "activation"}  # fmt: skip


def describe(config: Config) -> Decoder:
    return describe_behind(config.named(_KEYS), replace(BERT, model_type="distilbert", names=_NAMES))
