"""Attention, multi-head latent attention among it."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTemperature:
    """Length-dependent attention temperature (Llama 4).

    Rotated queries times 1 + beta * log(1 + floor((position + offset) / original_context)).
    """

    beta: float
    original_context: int  # tokens
    offset: int = 0  # 1: positions count from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHeadLatent:
    """Multi-head latent attention (MLA, DeepSeek-V2): keys and values, and queries with `q`, come from latent vectors.

    Attention.q reads q_norm(q(x)); Attention.k and v read kv_norm(kv(x)). A key is k(x), which all heads share and
    which is rotated, followed by what Attention.k gives; a value is padded with zeros to the length of a key.
    """

    q: Linear | None = None  # None: queries are projected from x itself
    q_norm: Norm | None = None
    kv: Linear
    kv_norm: Norm
    k: Linear
    value_dim: int  # of each head, without the padding: what Attention.v gives and o reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention: softmax(scale * q @ k.T) @ v."""

    heads: int
    kv_heads: int
    head_dim: int
    q: Linear
    k: Linear  # of layer `kv_from`, as v is, where that is given
    v: Linear
    o: Linear
    kv_from: int | None = None  # KV sharing across layers: the earlier layer whose keys and values are read
    q_norm: Norm | None = None  # over each head, or over all of them where its size says so
    k_norm: Norm | None = None
    v_norm: Norm | None = None  # over each head
    window: int | None = None  # newest tokens that a query sees, itself among them; None: all
    chunk: int | None = None  # chunked attention (Llama 4): of chunks of that many tokens, a query sees its own only
    rope: int | None = 0  # which of the decoder's RoPEs is applied to q and k; None: no positional encoding (NoPE)
    norm_after_rope: bool = False  # q and k are normalized after RoPE, not before
    scale: float | None = None  # None: 1 / sqrt(head_dim)
    softcap: float = 0.0  # attention logit soft-capping: softcap * tanh(score / softcap); 0: none
    sinks: str = ""  # attention sinks, the tensor in the source, [heads]: a logit of each head in the softmax only
    mla: MultiHeadLatent | None = None
    temperature: AttentionTemperature | None = None  # None: queries are not scaled by position
    # of the input; its sigmoid multiplies the attention output: [heads * head_dim, hidden], or one row for each head
    gate: Linear | None = None

    @property
    def gates_heads(self) -> bool:
        """Whether the gate has one value for all of a head."""
        return self.gate is not None and self.gate.rows == self.heads < self.o.columns

    @property
    def latent_dim(self) -> int:
        """Values of a token that all heads share: the rotary key and the latent; 0 without MLA."""
        return 0 if self.mla is None else self.mla.k.rows + self.mla.kv.rows
