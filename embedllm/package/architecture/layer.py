"""A layer, and what some families have in it beside attention and MLP."""

from __future__ import annotations

from dataclasses import dataclass

from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.architecture.weights import Linear, Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerEmbedding:
    """Per-layer embeddings (PLE; Gemma 3n, 4): `size` values of each token for each layer.

    multiplier * (norm(projection(x)) + table_multiplier * row of the table), where x is what the first layer is given.
    """

    # [tokens, layers * size]; the first row is that of tokens that it does not have. None: no table (EmbeddingGemma 2)
    table: Linear | None = None
    projection: Linear  # [layers * size, hidden]
    norm: Norm  # [size]
    table_multiplier: float = 1.0
    multiplier: float

    @property
    def size(self) -> int:
        return self.norm.size


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInput:
    """How a layer reads its per-layer embedding: x += norm(up(activation(gate(x)) * embedding))."""

    gate: Linear  # [size, hidden]
    up: Linear  # [hidden, size]
    norm: Norm
    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUpStreams:
    """Several streams in place of one, of which layers compute the first (AltUp, Baykal et al. 2023; Gemma 3n).

    `projections` make the others from the first; `unembed_projections` of the others are added to the first at the end,
    and the sum is divided by the number of streams. Each is scaled to have the first's root mean square.
    """

    projections: tuple[Linear, ...]  # [hidden, hidden] each, one for every stream but the first
    unembed_projections: tuple[Linear, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUp:
    """What a layer with a per_layer_input does to all n streams: predicts them, and corrects them by the first.

    weights(first) = tanh(router(norm(first)) / hidden); x += predict(weights(x[0])) as [n, n] @ x;
    made = layer(x[0]); x += (correct(weights(made)) + 1) * (made - x[0])
    """

    norm: Norm
    router: Linear  # [n, hidden]
    predict: Linear  # [n * n, n]
    correct: Linear  # [n, n]
    scale: str  # the tensor in the source, [hidden]: the first times this is what `per_layer_input` reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Laurel:
    """LAuReL (Menghani et al. 2024), a low-rank residual beside attention.

    x = (x + normed + norm(up(down(normed)))) / sqrt(2)
    """

    down: Linear
    up: Linear
    norm: Norm


Mixer = Attention | ShortConv | DeltaNet | Mamba2  # what lets a token read others


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """x += attention(attention_norm(x)); x += mlp(mlp_norm(x)); a norm that is None is left out.

    parallel: both read the same x, whose norm they share where there is no mlp_norm.
    ssm: a second mixer of the same norm, whose output is added to attention's (Falcon-H1's parallel heads).
    per_layer_input: follows the mlp; with several streams its output is added to all but the first.
    scale: the source's tensor, a number that all of x is multiplied by at the end.
    """

    attention_norm: Norm | None
    attention: Mixer
    mlp_norm: Norm | None
    mlp: Mlp | Moe | None  # None: the layer ends behind attention (Nemotron-H)
    ssm: Mamba2 | None = None  # beside an Attention
    attention_post_norm: Norm | None = None  # of what is added
    mlp_post_norm: Norm | None = None
    parallel: bool = False
    residual_multiplier: float = 1.0  # of what is added
    per_layer_input: PerLayerInput | None = None
    scale: str = ""
    # LayerScale (Touvron et al. 2021), of vision encoders: the source's tensors, [hidden], which multiply what is added
    attention_scale: str = ""
    mlp_scale: str = ""
    altup: AltUp | None = None  # where there are several streams
    laurel: Laurel | None = None
