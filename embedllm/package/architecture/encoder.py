"""What makes an embedding or reranker model of a decoder's layers."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.position_bias import PositionBias
from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A dense layer behind the pooling (sentence-transformers' Dense): norm(activation(linear(x)))."""

    linear: Linear
    activation: str = ""  # as of an Mlp, or "tanh"; empty: none
    norm: Norm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPrompt:
    """A text that an encoder wants in front of texts of one kind."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """What makes an embedding or reranker model of a decoder's layers: whole texts in one pass, no KV cache."""

    # as in sentence-transformers: "cls", "lasttoken", "mean", "max", "weightedmean" (by position, counted from 1),
    # "mean_sqrt_len_tokens" (the sum over the root of the number of tokens)
    pooling: str
    dense: tuple[Dense, ...] = ()
    score_activation: str = ""  # of a reranker's score: "sigmoid", "identity"; empty: an embedding model
    normalize: bool = False  # vectors are normalized to the length 1
    causal: bool = False  # a token sees those before it; else all, and of a window the same number to both sides
    post_norm: bool = False  # x = attention_norm(x + attention(x)); x = mlp_norm(x + mlp(x))
    token_types: Linear | None = None  # token type embeddings (segments of a pair), added to the embedding
    position_bias: PositionBias | None = None  # what all layers add to their scores by the distance of two tokens
    prompts: tuple[NamedPrompt, ...] = ()
    prompt: str = ""  # the name of the one that is used where none is asked for
