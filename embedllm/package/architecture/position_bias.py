"""What encoders add to the scores of attention by distance, in place of rotary embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativePositionBias:
    """Relative position bias (T5, Raffel et al. 2020; MPNet): a number of each head, added to scores by distance.

    Half of the buckets are of keys behind the query. Half of those of a side are of one distance each, the others grow
    with its logarithm up to max_distance; the last one has all that is farther.
    """

    table: Linear  # [buckets, heads]
    max_distance: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Alibi:
    """Attention with linear biases (ALiBi, Press et al. 2022), the same to both sides: scores - slope * distance.

    The slopes of n heads, a power of two, are 2**(-max_bias / n) to the powers 1 to n; of other numbers of heads, those
    of the next lower power, followed by every other one of the next higher.
    """

    max_bias: float = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DisentangledAttention:
    """Disentangled attention (DeBERTa, He et al. 2021): each query also scores the position of a key, and vice versa.

    With r = norm(table) and d the bucket of a query's distance to a key, q . k(r[d]) + k . q(r[d]) is added to q . k
    before the scale. Distances below buckets / 2 have buckets of their own, larger ones grow with their logarithm up
    to max_distance (0: every distance has its own); those behind and before have `buckets` each.
    """

    table: Linear  # [2 * buckets, hidden]
    norm: Norm | None
    buckets: int
    max_distance: int  # tokens


PositionBias = RelativePositionBias | Alibi | DisentangledAttention
