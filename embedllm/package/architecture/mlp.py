"""Feed-forward parts of a layer: one MLP, or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """down(activation(gate(x)) * up(x)); without a gate down(activation(up(x)))."""

    gate: Linear | None = None
    up: Linear
    down: Linear
    # or "gelu", "gelu_tanh", "relu", "relu2": relu(x)**2, "xielu": p * relu(x)**2 + n * (elu(x) - x) + x / 2, where
    # p is softplus(alpha_p) and n is softplus(alpha_n) + 1 / 2
    activation: str = "silu"
    swiglu_alpha: float = 1.0  # of silu: x * sigmoid(swiglu_alpha * x) (gpt-oss)
    swiglu_limit: float = 0.0  # gate is clamped to at most that, up to +- that, before anything else; 0: not (gpt-oss)
    up_offset: float = 0.0  # what is added to up
    xielu_alphas: str = ""  # of xielu: the source's tensors are xielu_alphas.alpha_p and .alpha_n, a number each
    # activation sparsity (Gemma 3n): of the gate, only what exceeds mean + N standard deviations; 0: all of it
    sparsity_cutoff: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeNorms:
    """Norms of the parts of a mixture (Gemma 4): each part reads the stream through its own.

    experts_post and shared_post are over what the experts make together, and over what the shared one makes.
    """

    router: Norm
    experts: Norm
    experts_post: Norm
    shared: Norm
    shared_post: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: the sum of the mlps that a router chooses for a token, by their weights."""

    router: Linear  # [experts, hidden]
    experts: tuple[Mlp, ...]
    top_k: int  # experts of a token: those with the highest scores
    # of the router's logits: "softmax"; "softmax_topk": over the chosen experts only; "sigmoid"; "sparsemixer" (Liu et
    # al. 2023): the weight of a chosen expert is its part of a softmax over itself and those behind it whose logits are
    # less by 2 * jitter_eps * max(|theirs|, its own) at most
    scoring_func: str = "softmax"
    jitter_eps: float = 0.0  # of SparseMixer
    norm_topk: bool = False  # the weights of the chosen are divided by their sum
    scale: float = 1.0  # of the weights
    # the tensor in the source, [experts]: added to the scores that experts are chosen by, not to their weights
    score_correction_bias: str = ""
    score_correction_bias_is_row: bool = False  # the source has it as a matrix of one row, [1, experts]
    groups: int = 1  # of experts that lie together; only the best `top_k_groups` by their two best scores take part
    top_k_groups: int = 1
    shared: Mlp | None = None  # for every token
    shared_gate: Linear | None = None  # [1, hidden]; the sigmoid of its product is the weight of the shared one
    bias: str = ""  # the tensor in the source, [hidden]: added to the sum
    scales_input: bool = False  # weights multiply what an expert reads, not what it makes (Llama 4)
    norms: MoeNorms | None = None  # with a shared one, in a layer without an mlp_norm
    router_multiplier: float = 1.0  # of the router's logits
    expert_scales: str = ""  # the tensor in the source, [experts]: multiplies the weights of the chosen
