"""What families share: a stack of layers of attention and mlp, of which a Shape says how one family has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.parts import (
    ACTIVATIONS,
    LLAMA,
    RMS,
    Names,
    NormKind,
    Parts,
    Sizes,
    activation,
)
from embedllm.export.architectures._shared.rope import ROPE, RopeKeys, describe_rope
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention, AttentionTemperature
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer, Mixer
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.recurrent import Mamba2
from embedllm.package.architecture.rope import Rope
from embedllm.package.architecture.weights import Linear, Norm, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Where a family differs from Llama, whose shape this is by default."""

    model_type: str
    names: Names = LLAMA
    norm: NormKind = RMS
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied: bool = False  # what a config that does not say it means
    activation_key: str = "hidden_act"
    activation: str = "silu"  # what a config that does not say it means
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)  # by their names in config.json
    transposed: bool = False  # the matrices of the layers are [columns, rows]
    query: Callable[[Parts], Linear | None] = lambda parts: None  # q, where its rows lie among others
    gate: Callable[[Parts], Linear | None] = lambda parts: None  # of the output of attention
    qkv_groups: int = 1  # of a fused q, k and v: the q, k and v of the first share of the heads, then the next ones'
    qk_norm: str = ""  # "head": over each head; "all": over all heads together; "heads": each has its own weights
    qk_norm_kind: NormKind | None = None  # where it is not that of the other norms
    norm_after_rope: bool = False
    rope_keys: RopeKeys = ROPE
    interleaved: bool = (
        False  # GPT-J style RoPE: neighbouring dimensions are rotated together, not those of the two halves
    )
    local_rope: Rope | None = None
    rope: Callable[[int], int | None] = lambda index: 0  # rotation of layer `index`
    window: Callable[[int], int | None] = lambda index: None  # attention window of layer `index`
    positions_start: int = 0  # the row of learned positions that is of the first token
    has_rope: bool = True  # False: no rotary position embedding at all
    scale: float | None = None
    softcap: float = 0.0
    temperature: AttentionTemperature | None = None
    sinks: str = ""  # of a layer's attention, in the checkpoint; empty: there are none
    parallel: bool = False
    residual_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    logits_softcap: float = 0.0
    attention: Callable[[Parts], Attention] | None = None  # in place of what the fields above say of it
    mixer: Callable[[Parts, int], Mixer | None] = lambda parts, index: None  # None: layer `index` has attention
    ssm: Callable[[Parts], Mamba2 | None] = lambda parts: None  # beside the attention of every layer
    mixture: Callable[[Parts, int], Moe | Mlp | None] = lambda parts, index: None  # None: layer `index` has an mlp


def describe_shaped(config: Config, shape: Shape) -> Decoder:
    """The decoder of a family that differs from Llama by `shape`."""
    sizes = Sizes.of(config)
    names = shape.names
    embedding = Linear(
        name="embedding", source=names.in_model(names.embedding), rows=sizes.vocabulary, columns=sizes.hidden
    )
    is_tied = config.flag("tie_word_embeddings", shape.tied)
    if is_tied and shape.head_bias:
        raise UnsupportedModel("a head with a bias that is tied to the embedding is not described.")
    head = replace(embedding, name="head", source=names.head, bias=shape.head_bias)
    rope = Rope(base=shape.rope_keys.theta, rotary_dim=0)
    if shape.has_rope:
        rope = describe_rope(config, sizes.head_dim, shape.rope_keys)
    context = config.integer("max_position_embeddings")
    return Decoder(
        model_type=shape.model_type,
        context=context,
        embedding=embedding,
        layers=tuple(_layer(config, shape, sizes, rope, index) for index in range(sizes.layers)),
        norm=shape.norm.named(config, "norm", names.in_model(names.norm), sizes.hidden),
        head=embedding if is_tied else head,
        rope=rope,
        local_rope=shape.local_rope,
        position_embeddings=_positions(embedding, shape, context) if names.positions else None,
        embedding_multiplier=shape.embedding_multiplier,
        logits_multiplier=shape.logits_multiplier,
        logits_softcap=shape.logits_softcap,
    )


def _positions(embedding: Linear, shape: Shape, context: int) -> Linear:
    source, start = shape.names.in_model(shape.names.positions), shape.positions_start
    origin = Origin(rows=context + start, start=start) if start else None
    return replace(embedding, name="positions", source=source, rows=context, origin=origin)


def _layer(config: Config, shape: Shape, sizes: Sizes, rope: Rope, index: int) -> Layer:
    names = shape.names
    parts = Parts(config=config, sizes=sizes, names=names, norm_kind=shape.norm, transposed=shape.transposed,
                  name=f"layers.{index}", source=f"{names.in_model(names.layers)}.{index}")  # fmt: skip
    return Layer(
        attention_norm=parts.norm("attention_norm", names.attention_norm),
        attention=shape.mixer(parts, index)
        or (_attention(parts, shape, rope, index) if shape.attention is None else shape.attention(parts)),
        ssm=shape.ssm(parts),
        attention_post_norm=parts.norm("attention_post_norm", names.attention_post_norm),
        mlp_norm=parts.norm("mlp_norm", names.mlp_norm),
        mlp=shape.mixture(parts, index) or _mlp(parts, shape),
        mlp_post_norm=parts.norm("mlp_post_norm", names.mlp_post_norm),
        parallel=shape.parallel,
        residual_multiplier=shape.residual_multiplier,
    )


def _attention(parts: Parts, shape: Shape, rope: Rope, index: int) -> Attention:
    sizes, names = parts.sizes, shape.names
    rope_index = shape.rope(index) if shape.has_rope else None
    pairs = rope.rotary_dim if shape.interleaved and rope_index is not None else 0
    q, k, v = parts.qkv(groups=shape.qkv_groups, bias=shape.qkv_bias, pairs=pairs)
    kind = shape.qk_norm_kind or shape.norm

    def qk_norm(part: str, where: str, heads: int) -> Norm | None:
        if not shape.qk_norm:
            return None
        return parts.head_norm(part, where, heads, kind, over=shape.qk_norm, pairs=pairs)

    return Attention(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        q=shape.query(parts) or q,
        k=k,
        v=v,
        o=parts.linear("attention.o", names.o, sizes.hidden, sizes.heads * sizes.head_dim, bias=shape.o_bias),
        q_norm=qk_norm("attention.q_norm", names.q_norm, sizes.heads),
        k_norm=qk_norm("attention.k_norm", names.k_norm, sizes.kv_heads),
        norm_after_rope=shape.norm_after_rope,
        window=shape.window(index),
        rope=rope_index,
        scale=shape.scale,
        softcap=shape.softcap,
        temperature=shape.temperature,
        sinks=shape.sinks and f"{parts.source}.{shape.sinks}",
        gate=shape.gate(parts),
    )


def _mlp(parts: Parts, shape: Shape) -> Mlp:
    active = activation(parts.config, shape.activation_key, shape.activation, shape.activations)
    return parts.mlp(parts.config.integer("intermediate_size"), active, bias=shape.mlp_bias)


def refuse(config: Config, key: str, value: bool) -> None:
    """Raises UnsupportedModel where a flag of config.json has a value that the family's file does not describe."""
    if config.flag(key, not value) == value:
        raise UnsupportedModel(f"{key} is {str(value).lower()}; this variant of the family is not described.")
