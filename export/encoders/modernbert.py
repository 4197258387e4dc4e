"""ModernBERT, GTE ModernBERT, Granite Embedding R2: RoPE, sliding windows on two of three layers, gated MLP."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind, activation
from embedllm.export.architectures._shared.rope import SLIDING, RopeKeys, describe_rope
from embedllm.export.architectures._shared.sliding_window import sliding_layers
from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import linear
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Dense, Encoder

_NAMES = Names(
    embedding="embeddings.tok_embeddings", norm="final_norm", attention_norm="attn_norm", mlp_norm="mlp_norm",
    qkv="attn.Wqkv", o="attn.Wo", gate_up="mlp.Wi", down="mlp.Wo",
)  # fmt: skip
_GLOBAL = RopeKeys(theta=160_000.0, theta_key="global_rope_theta")
_LOCAL = RopeKeys(theta=10_000.0, theta_key="local_rope_theta", layers=SLIDING)


def describe(config: Config) -> Decoder:
    every = config.integer("global_attn_every_n_layers", 3)
    sliding = sliding_layers(config, lambda index: index % every != 0)
    half = config.integer("local_attention", 128) // 2
    bias, norm = config.flag("attention_bias", False), _norm(config)
    head_dim = config.integer("hidden_size") // config.integer("num_attention_heads")
    shape = Shape(
        model_type="modernbert",
        names=_NAMES,
        norm=norm,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        tied=True,
        activation_key="hidden_activation",
        activation="gelu",
        rope_keys=_GLOBAL,
        local_rope=describe_rope(config, head_dim, _LOCAL),
        rope=lambda index: int(sliding[index]),
        window=lambda index: half + 1 if sliding[index] else None,
    )
    decoder = describe_shaped(config, shape)
    first = replace(decoder.layers[0], attention_norm=None)
    return replace(
        decoder,
        layers=(first, *decoder.layers[1:]),
        head=decoder.embedding,
        embedding_norm=norm.named(config, "embedding_norm", _NAMES.in_model("embeddings.norm"), decoder.hidden),
        encoder=Encoder(pooling="mean"),
    )


def scoring(config: Config) -> Encoder:
    hidden, pooling = config.integer("hidden_size"), config.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise UnsupportedModel(f"classifier_pooling is '{pooling}'; expected 'cls' or 'mean'.")
    first = Dense(
        linear=linear(0, "head.dense", hidden, hidden, bias=config.flag("classifier_bias", False)),
        activation=activation(config, "classifier_activation", "gelu"),
        norm=_norm(config).named(config, "steps.0.norm", "head.norm", hidden),
    )
    return Encoder(pooling=pooling, dense=(first, Dense(linear=linear(1, "classifier", 1, hidden))))


def _norm(config: Config) -> NormKind:
    return NormKind(kind="layer", bias=config.flag("norm_bias", False), key="norm_eps", epsilon=1e-5)
