"""What makes a head that drafts for another model of a decoder of one layer."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTokenPrediction:
    """What makes a multi-token prediction head (MTP, DeepSeek-V3; `nextn`) of a decoder of one layer.

    Its layer reads fc([embedding_norm(embedding of token t + 1), hidden_norm(hidden state of token t)]), where the
    hidden state is what the target model's own head reads, or what this one's head has read for the token before.
    Embedding, head and rotary tables are the target model's.
    """

    embedding_norm: Norm
    hidden_norm: Norm
    fc: Linear  # [hidden, 2 * hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle:
    """What makes an EAGLE-3 head (Li et al. 2025, arXiv:2503.01840) of a decoder of one layer.

    h is fc([hidden states of the target model behind `layers` of its layers]) of token t, or what this decoder's own
    norm has read for the token before. Attention reads [attention_norm(embedding of token t + 1), hidden_norm(h)], side
    by side, and is added to h. The embedding is the target model's; the head has rows for a part of its tokens.
    """

    layers: tuple[int, ...]  # of the target model: how many of its layers lie before each hidden state that fc reads
    hidden_norm: Norm
    fc: Linear  # [hidden, len(layers) * hidden]; the target model's graph multiplies by it
    normed_residual: bool = False  # attention is added to hidden_norm(h)
