"""An encoder in plain NumPy: its layers for one text, and for every backend what is made of the vectors of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.reference.layers import Layers, Weights
from embedllm.backends.reference.math import activated, sigmoid, softmax
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.position_bias import Alibi, DisentangledAttention, RelativePositionBias
from embedllm.package.position_bias import alibi_slopes, buckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture.encoder import Encoder
    from embedllm.types import F32


class EncoderLayers(Layers):
    """Follows the mathematics of embedllm/package/architecture literally, in float32. Keeps nothing of a text."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        encoder = weights.decoder.encoder
        assert encoder is not None
        self._encoder: Encoder = encoder

    def hidden(self, rows: F32, types: NDArray[np.int64]) -> F32:
        """The vectors [T, hidden] of a text's tokens. rows: of the embedding. types: of the parts that they are of."""
        weights, decoder = self._weights, self._weights.decoder
        x = rows * np.float32(decoder.embedding_multiplier)
        if self._encoder.token_types is not None:
            x = x + weights.tensor(f"{self._encoder.token_types.name}.weight")[types]
        if decoder.position_embeddings is not None:
            x = x + weights.tensor(f"{decoder.position_embeddings.name}.weight")[: len(x)]
        x = self._norm(x, decoder.embedding_norm)
        if decoder.per_layer_embedding is not None:
            self._set_per_layer_inputs(x)
        for index, layer in enumerate(decoder.layers):
            x = self._behind(index, layer, x) if self._encoder.post_norm else self._layer(index, layer, x)
        return self._norm(x, decoder.norm)

    def finished(self, hidden: F32, lengths: NDArray[np.int64]) -> F32:
        """Vectors, or scores, [B, D], of texts whose first `lengths` tokens have the vectors hidden [B, T, hidden]."""
        x = pooled(hidden, lengths, self._encoder.pooling)
        for step in self._encoder.dense:
            x = self._linear(x, step.linear)
            if step.activation:
                x = np.tanh(x) if step.activation == "tanh" else activated(x, step.activation)
            x = self._norm(x, step.norm)
        return sigmoid(x) if self._encoder.score_activation == "sigmoid" else x

    def _behind(self, index: int, layer: Layer, x: F32) -> F32:
        """A layer whose norms are behind the sums."""
        x = self._norm(self._added(layer, x, self._mixed(index, layer.attention, x)), layer.attention_norm)
        assert layer.mlp is not None, "layers of encoders have one"
        output = self._mlp(layer.mlp, x) if isinstance(layer.mlp, Mlp) else self._moe(index, layer.mlp, x)
        return self._norm(self._added(layer, x, output), layer.mlp_norm)

    def _attended(self, index: int, attention: Attention, q: F32, k: F32, v: F32) -> F32:
        q, k = (self._rotated(x, attention.rope) for x in (q, k))
        if attention.norm_after_rope:
            q, k = self._norm(q, attention.q_norm), self._norm(k, attention.k_norm)
        shared = attention.heads // attention.kv_heads
        k, v = k.repeat(shared, axis=0), v.repeat(shared, axis=0)
        by = np.float32(np.sqrt(attention.head_dim) if attention.scale is None else 1 / attention.scale)
        places = np.arange(q.shape[1])
        before = places[:, None] - places[None, :]  # how many tokens a key is before a query
        mask = before >= 0 if self._encoder.causal else np.ones_like(before, bool)
        if attention.window is not None:
            mask &= abs(before) < attention.window
        scores = self._biased(attention, q @ k.transpose(0, 2, 1), q, k, before) / by
        if isinstance(bias := self._encoder.position_bias, Alibi):
            scores = scores - alibi_slopes(attention.heads, bias.max_bias)[:, None, None] * abs(before).astype(
                np.float32
            )
        elif isinstance(bias, RelativePositionBias):
            table = self._weights.tensor(f"{bias.table.name}.weight")
            scores = scores + table[self._buckets(bias, before)].transpose(2, 0, 1)
        weights = softmax(np.where(mask, scores, -np.inf))
        return (weights @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)

    def _biased(self, attention: Attention, scores: F32, q: F32, k: F32, before: NDArray[np.int64]) -> F32:
        """The scores [H, T, T] of q and k [H, T, D] before their scale, with those of positions.

        before: how many tokens a key is before a query, [T, T].
        """
        bias = self._encoder.position_bias
        if not isinstance(bias, DisentangledAttention):
            return scores
        rows = self._norm(self._weights.tensor(f"{bias.table.name}.weight"), bias.norm)
        of_q, of_k = (self._heads(rows, linear, attention.heads, None) for linear in (attention.q, attention.k))
        places = np.broadcast_to(self._buckets(bias, before), scores.shape)
        of_query: F32 = np.take_along_axis(q @ of_k.transpose(0, 2, 1), places, axis=2)
        of_key: F32 = np.take_along_axis(k @ of_q.transpose(0, 2, 1), places.transpose(0, 2, 1), axis=2)
        return scores + of_query + of_key.transpose(0, 2, 1)

    def _buckets(
        self, bias: RelativePositionBias | DisentangledAttention, before: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The row of the table for each query and key, [T, T]."""
        longest = len(before)
        return buckets(bias, longest)[before + longest - 1]


def pooled(hidden: F32, lengths: NDArray[np.int64], pooling: str) -> F32:
    """One vector [B, H] of those of the first `lengths` tokens of each text, hidden [B, T, H]. pooling: as Encoder."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        return hidden[np.arange(len(hidden)), lengths - 1]
    mask = (np.arange(hidden.shape[1]) < lengths[:, None])[..., None]  # [B, T, 1]
    if pooling == "max":
        largest: F32 = np.where(mask, hidden, -np.inf).max(axis=1)
        return largest
    weights = mask.astype(np.float32)
    if pooling == "weightedmean":
        weights *= np.arange(1, hidden.shape[1] + 1, dtype=np.float32)[:, None]
    total = (np.where(mask, hidden, 0) * weights).sum(axis=1)  # what is behind a text's end may be no number
    count = weights.sum(axis=1)
    mean: F32 = total / (np.sqrt(count) if pooling == "mean_sqrt_len_tokens" else count)
    return mean


def shortened(vectors: F32, dimensions: int | None, *, normalised: bool) -> F32:
    """The first `dimensions` values of each vector, and if `normalised`, those of the length 1."""
    cut = vectors[:, :dimensions]
    if not normalised:
        return np.ascontiguousarray(cut)
    length = np.linalg.norm(cut, axis=1, keepdims=True)
    return cut / np.maximum(length, np.float32(1e-12))  # as torch has it: a vector of zeros stays one
