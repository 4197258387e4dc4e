"""What families of encoders share: a decoder's layers with post-norms, and BERT's embeddings."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Dense, Encoder
from embedllm.package.architecture.weights import Linear

NORM = NormKind(kind="layer", bias=True, key="layer_norm_eps", epsilon=1e-12)
NAMES = Names(
    embedding="embeddings.word_embeddings", positions="embeddings.position_embeddings", layers="encoder.layer",
    attention_norm="attention.output.LayerNorm", mlp_norm="output.LayerNorm", q="attention.self.query",
    k="attention.self.key", v="attention.self.value", o="attention.output.dense", gate="", up="intermediate.dense",
    down="output.dense",
)  # fmt: skip


BERT = Shape(
    model_type="bert", names=NAMES, norm=NORM, qkv_bias=True, o_bias=True, mlp_bias=True, tied=True, activation="gelu",
    has_rope=False,
)  # fmt: skip


def describe_behind(
    config: Config, shape: Shape, *, types: str = "", rows: int = 2, first: str = "embeddings.LayerNorm"
) -> Decoder:
    """A model with norms behind the sums; what the last one gives is the model's.

    types: the table of parts of a pair, if there is, of `rows` where the config does not say it. first: the norm of
    the embeddings.
    """
    if (kind := config.text("position_embedding_type", "absolute")) != "absolute":
        raise UnsupportedModel(f"position_embedding_type is '{kind}'; expected 'absolute', learned positions.")
    if config.flag("is_decoder", False):
        raise UnsupportedModel("is_decoder is true; this variant of the family is not described.")
    names, start = shape.names, shape.positions_start
    last = config.integer("num_hidden_layers") - 1
    positions = config.integer("max_position_embeddings")
    if positions <= start:
        raise UnsupportedModel(
            f"max_position_embeddings is {positions}; expected more than the {start} rows before it."
        )
    shape = replace(shape, names=replace(names, norm=f"{names.layers}.{last}.{names.mlp_norm}"))
    decoder = describe_shaped(config.replaced({"max_position_embeddings": positions - start}), shape)
    table = None
    if types:
        source = names.in_model(types)
        table = replace(decoder.embedding, name="types", source=source, rows=config.integer("type_vocab_size", rows))
    layers = (*decoder.layers[:-1], replace(decoder.layers[-1], mlp_norm=None))
    return replace(
        decoder,
        layers=layers,
        head=decoder.embedding,
        embedding_norm=NORM.named(config, "embedding_norm", names.in_model(first), decoder.hidden),
        encoder=Encoder(pooling="mean", post_norm=True, token_types=table),
    )


def scored(config: Config, first: str, last: str, *, activation: str = "tanh") -> Encoder:
    """A reranker that looks at the first token: a matrix with an activation, and one that gives the score."""
    hidden = config.integer("hidden_size")
    return Encoder(
        pooling="cls",
        dense=(
            Dense(linear=linear(0, first, hidden, hidden), activation=activation),
            Dense(linear=linear(1, last, 1, hidden)),
        ),
    )


def linear(index: int, source: str, rows: int, columns: int, *, bias: bool = True) -> Linear:
    """A matrix behind the pooling."""
    return Linear(name=f"steps.{index}", source=source, rows=rows, columns=columns, bias=bias)
