"""A decoder described as data: what both graph emitters, the NumPy reference and the memory estimate read.

Nothing here acts, and nothing but the standard library is needed, so that any part may use these types. A family is
a function describe(config) -> Decoder in export/architectures; what differs between families is a field.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by a factor (Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """NTK scaling whose base grows with the length once it exceeds the trained one; exact for every length.

    Row p of the tables is what a model sees that has just reached length p + 1, so the result does not depend on how
    a prompt is chunked. transformers does the same token by token, but rotates a long prompt by its last position.
    """

    factor: float
    original_context: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1: low frequencies divided by a factor, high ones kept, those between blended."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): a ramp between interpolated and kept frequencies; cos and sin scaled."""

    factor: float
    original_context: int  # tokens
    beta_fast: float
    beta_slow: float
    attention_factor: float  # multiplies cos and sin
    truncate: bool  # round the ends of the ramp to whole dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE (Ding et al. 2024): frequencies divided one by one, by other factors beyond the trained length.

    One set of factors rotates all of a text: the context of the export decides, not how long a text has become.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int  # tokens
    context: int  # tokens that the export holds; for more than the trained ones the long factors are taken
    attention_factor: float  # multiplies cos and sin


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalScaling:
    """Frequencies of a full rotary embedding, of which only the fastest are used (Gemma 4's partial rotary)."""

    head_dim: int
    factor: float  # divides positions


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling | ProportionalScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Mrope:
    """Multimodal RoPE (M-RoPE; Qwen2-VL, Wang et al. 2024): tokens of images have a time, a row and a column.

    Those of text have one position, as in RoPE. embedllm/backends/mrope.py says which.
    """

    sections: tuple[int, ...]  # pairs of dimensions that the time, the row and the column rotate
    interleaved: bool = False  # time, row, column, time, ... as far as there are rows and columns; else one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding."""

    base: float  # theta
    rotary_dim: int  # leading head dimensions that are rotated (partial rotary); the rest pass through
    scaling: RopeScaling | None = None
    mrope: Mrope | None = None  # of a vision-language model whose images have rows and columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where rows are in the source, when that is not a tensor of its own with the same rows in the same order."""

    rows: int  # of the source's tensor, all of its dimensions but the last together
    start: int = 0  # the first row that is taken
    block: int = 0  # rows that are contiguous; 0: all of them
    stride: int = 0  # from the beginning of one block to that of the next
    transposed: bool = False  # the source has [columns, rows]
    source_columns: int = 0  # of a transposed tensor that is several matrices, behind each other; 0: it is one
    column_start: int = 0  # the first of those columns that is taken
    head_rows: int = 0  # rows of a head; the fields below reorder rows within each
    interleaved: int = (
        0  # number of leading rows with interleaved (GPT-J style) RoPE pairs; here they are in two halves
    )
    rope_last: int = 0  # number of rotated rows that are first here and last in the source
    partial_halves: int = 0  # rotated rows of heads whose halves are only partly rotated; here they come first


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """kind "rms": x / sqrt(mean(x**2) + epsilon) * weight; "layer": x - mean(x) in place of x, and + bias."""

    name: str
    source: str  # the tensor of the weights in the source; empty: weights of 1
    size: int  # values that are normalized together
    epsilon: float
    kind: str = "rms"
    bias: str = ""  # the tensor in the source
    weight_offset: float = 0.0  # added to the source's weights, such as 1 of Gemma's (1 + weight)
    groups: int = 1  # heads that have weights of their own: weight is [groups, size]
    is_flat: bool = False  # the source has them as [groups * size]
    origin: Origin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y = x @ weight.T + bias; weight is [rows, columns]."""

    name: str  # in weights.safetensors
    source: str  # prefix in the source: source.weight, source.bias
    rows: int
    columns: int
    bias: bool = False
    origin: Origin | None = None
    weight_multiplier: float = 1.0  # of the source's weights; what is stored is multiplied by it
    # clipped linear (Gemma 4): x and y are clamped to what four tensors of the source say, a number each:
    # clip.input_min, clip.input_max, clip.output_min, clip.output_max
    clip: str = ""


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
    gate: Linear | None = None  # of the input, [heads * head_dim, hidden]; its sigmoid multiplies the attention output

    @property
    def latent_dim(self) -> int:
        """Values of a token that all heads share: the rotary key and the latent; 0 without MLA."""
        return 0 if self.mla is None else self.mla.k.rows + self.mla.kv.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """In place of attention: c * convolution(b * x), each value by itself over its newest `kernel` tokens."""

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
    softplus(decay(x) + decay_bias), beta the sigmoid of beta(x). o reads norm(output) * silu(z).
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


Mixer = Attention | ShortConv | DeltaNet | Mamba2  # what lets a token read others


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
    # of the router's logits: "softmax"; "softmax_topk": over the chosen experts only; "sigmoid"
    scoring_func: str = "softmax"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerEmbedding:
    """Per-layer embeddings (PLE; Gemma 3n, 4): `size` values of each token for each layer.

    multiplier * (norm(projection(x)) + table_multiplier * row of the table), where x is what the first layer is given.
    """

    table: Linear  # [tokens, layers * size]; the first row is that of tokens that it does not have
    projection: Linear  # [layers * size, hidden]
    norm: Norm  # [size]
    table_multiplier: float
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
    altup: AltUp | None = None  # where there are several streams
    laurel: Laurel | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """A vision transformer (ViT) and its projector: of each tile of an image, rows that take the place of embeddings.

    x = patches(tile) + positions; layers; norm; pooling; pixel shuffle; projector_norm; projector. Tokens of a tile all
    see each other, and nothing of other tiles. Source: SigLIP (Zhai et al. 2023); pixel shuffle: Idefics3 (Laurencon et
    al. 2024); pooling, and attention in both directions: Gemma 3 (Gemma Team 2025).
    """

    image_token: int  # the placeholder that prompts have, once for each row
    image_size: int  # pixels; the side of a tile
    patch_size: int  # pixels; the side of a patch
    patches: str  # the source's convolution: patches.weight [hidden, 3, patch_size, patch_size], patches.bias
    positions: Linear  # learned, [patches of a tile, hidden], row by row
    layers: tuple[Layer, ...]
    norm: Norm
    pixel_shuffle: int  # that many patches in both directions become one row, side by side
    projector: Linear  # [the decoder's hidden, hidden * pixel_shuffle**2]
    pooling: int = 1  # that many patches in both directions become their mean
    projector_norm: Norm | None = None  # of what the projector reads
    bidirectional: bool = False  # in the decoder, the tokens of an image all see each other, within a layer's window

    @property
    def hidden(self) -> int:
        return self.norm.size

    @property
    def grid(self) -> int:
        """Patches along the side of a tile."""
        return self.image_size // self.patch_size

    @property
    def tile_tokens(self) -> int:
        """Rows that a tile becomes."""
        return (self.grid // self.pooling // self.pixel_shuffle) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchMerger:
    """Patches of a square, row by row and side by side, as one row: down(gelu(up(norm(square)))).

    square_norm (LFM2-VL): up(square_norm(norm(square))), whose norm is of each patch.
    merging (Mistral 3): up(merging(channels)), where channels has the first value of each patch, the second of each ...
    """

    norm: Norm  # of each patch, or of all values of a square where its size says so
    up: Linear
    down: Linear
    merging: Linear | None = None
    square_norm: Norm | None = None  # of all values of a square

    @property
    def norms(self) -> tuple[Norm, ...]:
        """In the order in which they are applied."""
        return (self.norm,) if self.square_norm is None else (self.norm, self.square_norm)

    @property
    def square(self) -> int:
        """Values of the patches of a square together."""
        return (self.merging or self.up).columns

    @property
    def matrices(self) -> tuple[Linear, ...]:
        """In the order in which they are multiplied by."""
        return tuple(each for each in (self.merging, self.up, self.down) if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPooler:
    """Patches of a square as one row (Gemma 4): projector(norm(multiplier * their mean)).

    standardize: the source's tensors standardize.std_bias and .std_scale, [hidden]: what is normed is
    (multiplier * mean - std_bias) * std_scale; empty: multiplier * mean.
    """

    norm: Norm
    projector: Linear
    multiplier: float
    standardize: str = ""

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (self.norm,)

    @property
    def matrices(self) -> tuple[Linear, ...]:
        """In the order in which they are multiplied by."""
        return (self.projector,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepStack:
    """Features of an earlier layer (DeepStack, Meng et al. 2024), added to the stream behind a layer of the decoder."""

    layer: int  # of the encoder, whose output it reads; the place in the tuple is the layer of the decoder
    merger: PatchMerger


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicVision:
    """A vision transformer of images of any size ("naive dynamic resolution", Qwen2-VL, Wang et al. 2024).

    x = patches_norm(patches(image)) + positions; layers with 2-D RoPE or without; merger. Rows of the result are side
    by side, [rows, hidden * (1 + deepstack)]. Patches are ordered by the squares that are merged; all see all, or those
    of their window only. 2-D RoPE: the first half of a head's pairs is rotated by the patch's row, the second by its
    column; the other way round where `rope_column_first`. Without: SigLIP 2's NaFlex (Tschannen et al. 2025).
    """

    image_token: int  # the placeholder that prompts have, once for each row
    patch_size: int  # pixels; the side of a patch
    temporal_patch_size: int  # images that a patch covers: the same one several times
    merge_size: int  # patches along the side of a square that becomes a row
    patches: str  # the source's convolution: [hidden, 3, temporal_patch_size, patch_size, patch_size]
    patches_bias: bool
    rope_base: float  # 0: layers have no RoPE
    # learned, of a square grid of patches, row by row; interpolated bilinearly, corners on corners. Where
    # `positions_by_axis`: a half of the rows is of columns, the other of rows; both of a patch are added
    positions: Linear | None
    layers: tuple[Layer, ...]
    merger: PatchMerger | PatchPooler
    patches_norm: Norm | None = None
    patches_channels_last: bool = False  # the source's convolution is a matrix [hidden, patch_size * patch_size * 3]
    antialias: bool = False  # positions are resized as an image is, edges on edges: to fewer by wider kernels
    # frequencies of rows and columns alternate in one series (Pixtral, Agrawal et al. 2024); else both have the same
    rope_interleaved: bool = False
    window: int = 0  # squares along the side of a window; 0: there are none
    full_layers: tuple[int, ...] = ()  # with windows: layers whose patches see all others
    deepstack: tuple[DeepStack, ...] = ()
    rope_column_first: bool = False
    positions_by_axis: bool = False
    # in the decoder, the tokens of an image all see each other in layers that have a window, within that
    bidirectional_in_windows: bool = False

    @property
    def hidden(self) -> int:
        return self.layers[0].attention.o.rows

    @property
    def head_dim(self) -> int:
        attention = self.layers[0].attention
        assert isinstance(attention, Attention)
        return attention.head_dim

    @property
    def factor(self) -> int:
        """Pixels that the sides of an image are multiples of."""
        return self.patch_size * self.merge_size

    @property
    def has_rope(self) -> bool:
        return self.rope_base > 0

    @property
    def mergers(self) -> tuple[PatchMerger | PatchPooler, ...]:
        """In the order of their features."""
        return (self.merger, *(each.merger for each in self.deepstack))

    @property
    def positions_side(self) -> int:
        """The most patches along a side, where positions are by axis."""
        assert self.positions is not None
        return self.positions.rows // 2

    def has_windows(self, index: int) -> bool:
        """Whether patches in layer `index` see those of their window only."""
        return self.window > 0 and index not in self.full_layers


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A whole model: embedding, layers, final norm, head."""

    model_type: str
    context: int  # most tokens that the export holds
    embedding: Linear  # rows: vocabulary, columns: hidden size
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear  # the embedding itself when tied
    rope: Rope  # rotary_dim 0: no layer has RoPE
    local_rope: Rope | None = None  # the second RoPE, of Attention.rope 1
    position_embeddings: Linear | None = None  # learned, added to the embedding
    per_layer_embedding: PerLayerEmbedding | None = None
    altup_streams: AltUpStreams | None = None
    embedding_multiplier: float = 1.0
    embedding_norm: Norm | None = None
    logits_multiplier: float = 1.0
    logits_softcap: float = 0.0  # final logit soft-capping: softcap * tanh(logit / softcap); 0: none
    encoder: Encoder | None = None  # an embedding or reranker model, which has no logits: its head is its embedding
    vision: Vision | DynamicVision | None = None  # of a vision-language model
    mtp: MultiTokenPrediction | None = None  # a multi-token prediction head of another model
    eagle: Eagle | None = None  # an EAGLE-3 head of another model

    @property
    def vocabulary(self) -> int:
        return self.embedding.rows

    @property
    def hidden(self) -> int:
        return self.embedding.columns

    @property
    def image_width(self) -> int:
        """Values of the features of a row of an image: those of an embedding, and those of DeepStack behind them."""
        deepstack = self.vision.deepstack if isinstance(self.vision, DynamicVision) else ()
        return self.hidden * (1 + len(deepstack))

    @property
    def images_are_bidirectional(self) -> bool:
        """Whether the tokens of an image attend to one another in the decoder, in any of its layers."""
        if isinstance(self.vision, DynamicVision):
            return self.vision.bidirectional_in_windows
        return self.vision is not None and self.vision.bidirectional

    @property
    def images_are_whole_in_windows_only(self) -> bool:
        """Whether they attend to one another in layers that have a window, and in no others."""
        return isinstance(self.vision, DynamicVision) and self.vision.bidirectional_in_windows

    def sees_images_whole(self, attention: Attention) -> bool:
        """Whether they attend to one another there."""
        in_all = not self.images_are_whole_in_windows_only
        return self.images_are_bidirectional and (in_all or attention.window is not None)

    @property
    def is_draft_head(self) -> bool:
        """Whether it reads hidden states of another model, for which it drafts."""
        return self.mtp is not None or self.eagle is not None

    @property
    def tied(self) -> bool:
        return self.head.name == self.embedding.name

    @property
    def uses_mla(self) -> bool:
        """Whether a layer has multi-head latent attention."""
        return any(attention.mla is not None for attention in self.attentions)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Of the layers that have attention."""
        return tuple(layer.attention for layer in self.layers if isinstance(layer.attention, Attention))

    @property
    def is_recurrent(self) -> bool:
        """Whether layers have a recurrent state, which cannot be rewound."""
        return any(layer.ssm is not None or not isinstance(layer.attention, Attention) for layer in self.layers)

    def chunk_of(self, attention: Attention) -> int | None:
        """The chunks that attention keeps to, in tokens; None where the whole context is in the first."""
        return attention.chunk if attention.chunk is not None and attention.chunk < self.context else None

    @property
    def chunk(self) -> int | None:
        """The smallest chunks of chunked attention that the context exceeds, in tokens."""
        return min((chunk for each in self.attentions if (chunk := self.chunk_of(each))), default=None)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Every RoPE, by the numbers that Attention.rope has."""
        return tuple(rope for rope in (self.rope, self.local_rope) if rope is not None and rope.rotary_dim)

    @property
    def kv_attentions(self) -> tuple[Attention, ...]:
        """Of the layers that cache keys and values, in the order of their numbers in the KV cache."""
        return tuple(attention for attention in self.attentions if attention.kv_from is None)

    def kv_number(self, index: int) -> int:
        """Of the keys and values that a layer reads."""
        mixer = self.layers[index].attention
        source = mixer.kv_from if isinstance(mixer, Attention) else None
        earlier = (layer.attention for layer in self.layers[: index if source is None else source])
        return sum(isinstance(other, Attention) and other.kv_from is None for other in earlier)

    @property
    def layer_ropes(self) -> tuple[Rope | None, ...]:
        """The RoPE of the keys of each layer that caches some; None: NoPE."""
        numbers = (attention.rope for attention in self.kv_attentions)
        return tuple(None if number is None else self.ropes[number] for number in numbers)

    @property
    def is_mixture(self) -> bool:
        """Whether any layer chooses among experts."""
        return any(isinstance(layer.mlp, Moe) for layer in self.layers)
