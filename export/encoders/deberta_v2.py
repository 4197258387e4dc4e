"""DeBERTa v3, mxbai-rerank v1: BERT with disentangled attention in place of learned positions."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import refuse
from embedllm.export.architectures._shared.parts import activation
from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import BERT, NAMES, NORM, describe_behind, scored
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder
from embedllm.package.architecture.position_bias import DisentangledAttention
from embedllm.package.architecture.weights import Linear

_NAMES = replace(
    NAMES, model="deberta", positions="", q="attention.self.query_proj", k="attention.self.key_proj",
    v="attention.self.value_proj",
)  # fmt: skip
_TERMS = {"c2p", "p2c"}  # of 'pos_att_type': content to position, and position to content


def describe(config: Config) -> Decoder:
    config = config.filled({"layer_norm_eps": 1e-7})
    _check(config)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("attention_head_size", hidden // heads)
    shape = replace(BERT, model_type="deberta-v2", names=_NAMES, scale=(3 * head_dim) ** -0.5)
    types = "embeddings.token_type_embeddings" if config.integer("type_vocab_size", 0, least=0) else ""
    decoder = describe_behind(config.replaced({"head_dim": head_dim}), shape, types=types)
    buckets = config.integer("position_buckets", -1, least=-1)
    longest = config.integer("max_relative_positions", -1, least=-1)
    longest = longest if longest > 0 else config.integer("max_position_embeddings")
    size = buckets if buckets > 0 else longest
    if buckets > 0 and not 1 <= buckets // 2 < longest - 1:
        raise UnsupportedModel(
            f"position_buckets is {buckets}; expected 2 to {2 * longest - 3}, half of which grow up to "
            f"max_relative_positions, {longest} tokens."
        )
    normed = "layer_norm" in config.text("norm_rel_ebd", "none").lower().split("|")
    bias = DisentangledAttention(
        table=Linear(
            name="position_bias", source=_NAMES.in_model("encoder.rel_embeddings"), rows=2 * size, columns=hidden
        ),
        norm=NORM.named(config, "position_bias.norm", _NAMES.in_model("encoder.LayerNorm"), hidden) if normed else None,
        buckets=size,
        max_distance=longest if buckets > 0 else 0,
    )
    assert decoder.encoder is not None
    return replace(decoder, encoder=replace(decoder.encoder, position_bias=bias))


def scoring(config: Config) -> Encoder:
    active = activation(config, "pooler_hidden_act", "gelu")
    return scored(config, "pooler.dense", "classifier", activation=active)


def _check(config: Config) -> None:
    """Raises UnsupportedModel for what the first DeBERTas have, which is not described."""
    refuse(config.filled({"relative_attention": False}), "relative_attention", False)
    refuse(config.filled({"share_att_key": False}), "share_att_key", False)
    refuse(config.filled({"position_biased_input": True}), "position_biased_input", True)
    if kernel := config.integer("conv_kernel_size", 0, least=0):
        raise UnsupportedModel(f"conv_kernel_size is {kernel}: a convolution beside the first layer (DeBERTa v2).")
    hidden = config.integer("hidden_size")
    if (size := config.integer("embedding_size", hidden)) != hidden:
        raise UnsupportedModel(f"embedding_size is {size}; expected hidden_size, {hidden}.")
    pos_att_type = config.value("pos_att_type")
    terms = pos_att_type.lower().split("|") if isinstance(pos_att_type, str) else config.texts("pos_att_type") or []
    if {term.strip() for term in terms} != _TERMS:
        raise UnsupportedModel(f"pos_att_type is {pos_att_type!r}; expected 'p2c|c2p'.")
