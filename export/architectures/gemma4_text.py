"""Gemma 4 (text only): per-layer embeddings (PLE), KV sharing across layers, larger heads in global layers, experts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import refuse
from embedllm.export.architectures._shared.moe import Experts, mixture
from embedllm.export.architectures._shared.parts import RMS, Names, Parts, Sizes, activation
from embedllm.export.architectures._shared.per_layer_embeddings import kv_sources, per_layer_embedding, per_layer_input
from embedllm.export.architectures._shared.proportional_rope import full_rope, rotated_first
from embedllm.export.architectures._shared.rope import FULL, SLIDING, RopeKeys, describe_rope
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma2 import NAMES
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Moe, MoeNorms
from embedllm.package.architecture.rope import Rope
from embedllm.package.architecture.weights import Linear, Norm

_ROPES = {
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """What the layers of a model share."""

    config: Config
    names: Names
    sliding: list[bool]
    ropes: tuple[Rope, Rope]  # of the layers that see all, and of the others
    ple_size: int  # size of the per-layer embeddings (PLE)
    sources: list[int | None]  # whose keys and values each layer reads

    def parts(self, index: int) -> Parts:
        source = f"{self.names.in_model(self.names.layers)}.{index}"
        sizes = _sizes(self.config, index, is_sliding=self.sliding[index])
        return Parts(config=self.config, sizes=sizes, names=self.names, norm_kind=RMS, transposed=False,
                     name=f"layers.{index}", source=source)  # fmt: skip


def describe(config: Config) -> Decoder:
    return describe_text(config, "gemma4_text", "model")


def describe_text(config: Config, model_type: str, place: str) -> Decoder:
    """The decoder of a Gemma 4 whose tensors have names that begin with `place`."""
    config = config.filled({"sliding_window": 512, "rope_parameters": _ROPES})
    refuse(config, "attention_bias", True)
    if config.text("use_bidirectional_attention", "vision") != "vision":
        raise UnsupportedModel("use_bidirectional_attention is 'all'; such a model is no decoder.")
    sliding = sliding_layers(config, all_but_every(6))
    sliding[-1] = False  # whatever the config says, as in transformers
    names, hidden = replace(NAMES, model=place), config.integer("hidden_size")
    full_head = _sizes(config, len(sliding) - 1, is_sliding=False).head_dim
    local = describe_rope(config, config.integer("head_dim"), RopeKeys(layers=SLIDING))
    ple_size = config.integer("hidden_size_per_layer_input", 256, least=0)
    model = _Model(config=config, names=names, sliding=sliding, ropes=(full_rope(config, full_head), local),
                   ple_size=ple_size, sources=kv_sources(config, sliding))  # fmt: skip
    embedding = Linear(name="embedding", source=names.in_model(names.embedding), rows=config.integer("vocab_size"),
                       columns=hidden)  # fmt: skip
    head = replace(embedding, name="head", source=names.head)
    return Decoder(
        model_type=model_type,
        context=config.integer("max_position_embeddings"),
        embedding=embedding,
        layers=tuple(_layer(model, index) for index in range(len(sliding))),
        norm=RMS.named(config, "norm", names.in_model(names.norm), hidden),
        head=embedding if config.flag("tie_word_embeddings", True) else head,
        rope=model.ropes[0],
        local_rope=local,
        per_layer_embedding=per_layer_embedding(config, names, embedding, layers=len(sliding), size=ple_size)
        if ple_size
        else None,
        embedding_multiplier=math.sqrt(hidden),
        logits_softcap=config.number_or_none("final_logit_softcapping", None, above=0) or 0.0,
    )


def _sizes(config: Config, index: int, *, is_sliding: bool) -> Sizes:
    """Of a layer: those that see all may have larger and fewer heads, by keys of their own or by a list of layers."""
    sizes, own = Sizes.of(config), config.section("per_layer_config")
    head_dim, kv_heads = sizes.head_dim, sizes.kv_heads
    if own is not None:  # as transformers 5.24 writes it
        changed = own.section(str(index)) or Config({})
        head_dim, kv_heads = changed.integer("head_dim", head_dim), changed.integer("num_key_value_heads", kv_heads)
    elif not is_sliding:
        head_dim = config.integer("global_head_dim", 512)
        if config.flag("attention_k_eq_v", False):
            kv_heads = config.integer("num_global_key_value_heads", kv_heads)
    if sizes.heads % kv_heads:
        raise UnsupportedModel(f"{sizes.heads} attention heads are no multiple of {kv_heads} key/value heads.")
    return replace(sizes, head_dim=head_dim, kv_heads=kv_heads)


def _layer(model: _Model, index: int) -> Layer:
    parts, config, names = model.parts(index), model.config, model.names
    has_experts = config.flag("enable_moe_block", False)
    is_wide = model.sources[index] is not None and config.flag("use_double_wide_mlp", False)
    inner = config.integer("intermediate_size") * (2 if is_wide else 1)
    active = activation(config, "hidden_activation", "gelu_pytorch_tanh")
    return Layer(
        attention_norm=parts.norm("attention_norm", names.attention_norm),
        attention=_attention(model, index),
        attention_post_norm=parts.norm("attention_post_norm", names.attention_post_norm),
        mlp_norm=None if has_experts else parts.norm("mlp_norm", names.mlp_norm),
        mlp=_mixture(parts, inner, active) if has_experts else parts.mlp(inner, active),
        mlp_post_norm=parts.norm("mlp_post_norm", names.mlp_post_norm),
        per_layer_input=per_layer_input(parts, model.ple_size, active) if model.ple_size else None,
        scale=f"{parts.source}.layer_scalar",
    )


def _mixture(parts: Parts, inner: int, active: str) -> Moe:
    """Experts and an mlp, both of which read the stream, as their router does."""
    config, source = parts.config, parts.source
    experts = Experts(
        count=config.integer("num_experts"),
        top_k=config.integer("top_k_experts"),
        inner=config.integer("moe_intermediate_size"),
        router="router.proj",
        place="experts",
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
    )

    def norm(part: str, where: str) -> Norm:
        return RMS.named(config, f"{parts.name}.mlp.{part}", f"{source}.{where}", parts.sizes.hidden)

    mlp = parts.mlp(inner, active)
    assert mlp.gate is not None
    named = {part: replace(linear, name=linear.name.replace(".mlp.", ".mlp.shared."))
             for part, linear in (("gate", mlp.gate), ("up", mlp.up), ("down", mlp.down))}  # fmt: skip
    return replace(
        mixture(parts, experts, norm_topk=True),
        shared=replace(mlp, **named),
        norms=MoeNorms(
            router=replace(norm("router_norm", ""), source=f"{source}.router.scale"),
            experts=norm("experts_norm", "pre_feedforward_layernorm_2"),
            experts_post=norm("experts_post_norm", "post_feedforward_layernorm_2"),
            shared=norm("shared_norm", parts.names.mlp_norm),
            shared_post=norm("shared_post_norm", "post_feedforward_layernorm_1"),
        ),
        router_multiplier=parts.sizes.hidden**-0.5,
        expert_scales=f"{source}.router.per_expert_scale",
    )


def _attention(model: _Model, index: int) -> Attention:
    config, parts, is_sliding, source = model.config, model.parts(index), model.sliding[index], model.sources[index]
    sizes, names, rope = parts.sizes, parts.names, model.ropes[is_sliding]
    makes = parts if source is None else model.parts(source)  # keys and values
    v_name = names.k if config.flag("attention_k_eq_v", False) and not is_sliding else names.v

    def product(of: Parts, part: str, where: str, heads: int) -> Linear:
        rows = heads * sizes.head_dim
        origin = None if part == "v" else rotated_first(rope, sizes.head_dim, rows)
        return of.linear(f"attention.{part}", where, rows, sizes.hidden, origin=origin)

    def norm(part: str, where: str) -> Norm:
        rms = RMS.named(config, f"{parts.name}.attention.{part}", f"{parts.source}.{where}", sizes.head_dim)
        return replace(rms, origin=rotated_first(rope, rms.size, rms.size))

    return Attention(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        q=product(parts, "q", names.q, sizes.heads),
        k=product(makes, "k", names.k, sizes.kv_heads),
        v=product(makes, "v", v_name, sizes.kv_heads),
        o=parts.linear("attention.o", names.o, sizes.hidden, sizes.heads * sizes.head_dim),
        kv_from=source,
        q_norm=norm("q_norm", names.q_norm),
        k_norm=norm("k_norm", names.k_norm) if source is None else None,
        v_norm=replace(norm("v_norm", ""), source="", origin=None) if source is None else None,
        window=config.integer("sliding_window") if is_sliding else None,
        rope=int(is_sliding),
        scale=1.0,
    )
