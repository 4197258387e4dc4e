"""What is in place of attention and has a state of one size: convolutions, delta rules, state spaces."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """In place of attention: c * convolution(b * x), each value by itself over its newest `kernel` tokens.

    In a layer of a vision encoder: over the `kernel` * `kernel` patches around it, zeros behind the edges, where the
    convolution in the source is [values, 1, kernel, kernel].
    """

    b: Linear
    c: Linear
    x: Linear
    o: Linear
    kernel: int  # tokens
    convolution: str  # the tensor in the source, [values, 1, kernel]; the newest token last
    bias: str = ""  # the tensor in the source, [values]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """In place of attention: a gated delta rule (Yang et al. 2024, arXiv:2412.06464), a matrix S for each value head.

    q, k and v pass a convolution over their newest `kernel` tokens, and silu; q and k of each head have the length 1.
    S = exp(g) * S; S = S + k (beta * (v - k S)); the head's output is q S / sqrt(key_dim). g is -exp(log_decay) *
    softplus(decay(x) + decay_bias), beta the sigmoid of beta(x), or twice that. o reads norm(output) * silu(z).
    """

    key_heads: int  # each is that of neighbouring value heads
    value_heads: int
    key_dim: int
    value_dim: int
    q: Linear
    k: Linear
    v: Linear
    z: Linear
    o: Linear
    beta: Linear  # [value_heads, hidden]
    decay: Linear  # the same
    log_decay: str  # the tensor in the source, [value_heads]
    decay_bias: str  # the same
    kernel: int  # tokens
    convolution: str  # the tensor in the source, [values of q, k and v, 1, kernel]; the newest token last
    norm: Norm  # over the output of a head
    allow_neg_eigval: bool = False  # beta up to 2: eigenvalues of a state's transition down to -1 (arXiv:2411.12537)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """In place of attention: a state space (Mamba-2, Dao and Gu 2024, arXiv:2405.21060), a matrix S for each head.

    x, b and c pass a convolution over their newest `kernel` tokens, and silu; neighbouring heads of a group have the
    same b and c. With t = softplus(step(x) + step_bias), S = exp(-exp(log_decay) * t) * S + b (t * x); a head's output
    is c S + skip * x. o reads norm(output * silu(z)).
    """

    heads: int
    head_dim: int
    state_dim: int
    groups: int = 1
    x: Linear
    b: Linear
    c: Linear
    z: Linear
    o: Linear
    step: Linear  # [heads, hidden]
    log_decay: str  # the tensor in the source, [heads]
    step_bias: str  # the same
    skip: str  # the same
    kernel: int  # tokens
    convolution: str  # the tensor in the source, [values of x, b and c, 1, kernel]; the newest token last
    bias: str = ""  # the tensor in the source, [values of x, b and c]
    norm: Norm | None  # over the heads of a group, each of which has weights of its own
