"""A decoder described as data: what both graph emitters, the NumPy reference and the memory estimate read.

Nothing here acts, and nothing but the standard library is imported, so that any part may use these types. A family is
a function describe(config) -> Decoder in export/architectures; what differs between families is a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by a factor (Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """NTK scaling whose base grows with the length once it exceeds the trained one; exact for every length.

    Row p of the tables is what a model sees that has just reached length p + 1, so the result does not depend on how
    a prompt is cut into pieces. transformers does the same token by token, but turns a whole long prompt by its end.
    """

    factor: float
    trained: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1: low frequencies divided by a factor, high ones kept, those between blended."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    trained: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): a ramp between interpolated and kept frequencies; cos and sin scaled."""

    factor: float
    trained: int  # tokens
    beta_fast: float
    beta_slow: float
    attention_factor: float  # multiplies cos and sin
    truncate: bool  # round the ends of the ramp to whole dimensions


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding."""

    base: float  # theta
    rotated: int  # leading head dimensions that turn; the rest pass through
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """x / sqrt(mean(x**2) + epsilon) * weight."""

    name: str
    source: str  # the tensor in the source
    size: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y = x @ weight.T + bias; weight is [rows, columns]."""

    name: str  # in weights.safetensors
    source: str  # prefix in the source: source.weight, source.bias
    rows: int
    columns: int
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention over rotated queries and keys."""

    heads: int
    kv_heads: int
    head_dim: int
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    q_norm: Norm | None = None  # over each head, before the rotation
    k_norm: Norm | None = None
    window: int | None = None  # newest tokens that a query sees, itself among them; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """down(silu(gate(x)) * up(x))."""

    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """x + attention(norm(x)), then the same with the mlp."""

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: Mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A whole model: embedding, layers, final norm, head."""

    model_type: str
    context: int  # most tokens that the export holds
    embedding: Linear  # rows: vocabulary, columns: hidden size
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear  # the embedding itself when tied
    rope: Rope

    @property
    def vocabulary(self) -> int:
        return self.embedding.rows

    @property
    def hidden(self) -> int:
        return self.embedding.columns

    @property
    def tied(self) -> bool:
        return self.head.name == self.embedding.name


def linears(layer: Layer) -> Iterator[Linear]:
    """Every matrix of a layer, in the order in which they are stored."""
    attention, mlp = layer.attention, layer.mlp
    yield from (attention.q, attention.k, attention.v, attention.o, mlp.gate, mlp.up, mlp.down)


def norms(decoder: Decoder) -> Iterator[Norm]:
    """Every norm of a model, in the order in which they are stored."""
    for layer in decoder.layers:
        yield layer.attention_norm
        for norm in (layer.attention.q_norm, layer.attention.k_norm):
            if norm is not None:
                yield norm
        yield layer.mlp_norm
    yield decoder.norm


def parameters(decoder: Decoder) -> int:
    """Number of weights; a tied head counts once."""
    matrices = [m for layer in decoder.layers for m in linears(layer)] + [decoder.embedding]
    matrices += [] if decoder.tied else [decoder.head]
    return sum(m.rows * (m.columns + m.bias) for m in matrices) + sum(n.size for n in norms(decoder))


def kv_bytes(decoder: Decoder, tokens: int, bytes_per_value: int = 4) -> int:
    """Memory of the KV cache for that many tokens."""
    per_token = sum(2 * layer.attention.kv_heads * layer.attention.head_dim for layer in decoder.layers)
    return per_token * bytes_per_value * tokens
