"""What the Llama-shaped families share: pre-norm layers, rotary attention, a gated SiLU mlp."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.config import Config
from embedllm.export.decoder import (
    Attention,
    Decoder,
    DynamicScaling,
    Layer,
    Linear,
    LinearScaling,
    Llama3Scaling,
    Mlp,
    Norm,
    Rope,
    RopeScaling,
    YarnScaling,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Where one Llama-shaped family differs from another."""

    model_type: str
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    window: Callable[[int], int | None] = lambda index: None  # attention window of layer `index`


def describe_llama_shaped(config: Config, shape: Shape) -> Decoder:
    """The decoder of a family that differs from Llama only by `shape`."""
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"hidden_act is '{activation}'; the {shape.model_type} description knows 'silu'.")
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", hidden // heads)
    embedding = Linear(name="embedding", source="model.embed_tokens", rows=config.integer("vocab_size"), columns=hidden)
    tied = config.flag("tie_word_embeddings", False)
    layers = config.integer("num_hidden_layers")
    return Decoder(
        model_type=shape.model_type,
        context=config.integer("max_position_embeddings"),
        embedding=embedding,
        layers=tuple(_layer(config, shape, index, hidden, head_dim) for index in range(layers)),
        norm=_norm(config, "norm", "model.norm", hidden),
        head=embedding if tied else Linear(name="head", source="lm_head", rows=embedding.rows, columns=hidden),
        rope=describe_rope(config, head_dim),
    )


def describe_rope(config: Config, head_dim: int) -> Rope:
    """The rotary embedding, from 'rope_parameters' (transformers 5) or 'rope_theta' and 'rope_scaling'."""
    if head_dim % 16:
        raise UnsupportedModel(
            f"head_dim is {head_dim}; ONNX Runtime's attention operator rotates heads whose size is a multiple of 16."
        )
    sections = [config.section(key) for key in ("rope_parameters", "rope_scaling")]
    ropes = [_rope(config, section, head_dim) for section in sections if section is not None]
    if len(ropes) == 2 and ropes[0] != ropes[1]:
        raise ExportError("'rope_parameters' and 'rope_scaling' of config.json differ; keep one of them.")
    return ropes[0] if ropes else _rope(config, Config({}), head_dim)


def _rope(config: Config, parameters: Config, head_dim: int) -> Rope:
    base = parameters.number("rope_theta", config.number("rope_theta", 10_000.0, above=1), above=1)
    part = parameters.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    rotated = int(head_dim * part)
    if rotated != head_dim:
        raise UnsupportedModel(f"partial_rotary_factor is {part}; this description turns whole heads only.")
    return Rope(base=base, rotated=rotated, scaling=_scaling(config, parameters))


def _scaling(config: Config, parameters: Config) -> RopeScaling | None:
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    own_context = config.integer("max_position_embeddings")
    trained_key = "original_max_position_embeddings"
    trained = config.integer(trained_key, parameters.integer(trained_key, own_context))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=parameters.number("factor", above=0))
    if kind == "dynamic":
        return DynamicScaling(factor=parameters.number("factor", above=0), trained=own_context)
    if kind == "llama3":
        low = parameters.number("low_freq_factor", above=0)
        return Llama3Scaling(
            factor=parameters.number("factor", above=0),
            low_frequency_factor=low,
            high_frequency_factor=parameters.number("high_freq_factor", above=low),
            trained=trained,
        )
    if kind == "yarn":
        factor = parameters.number("factor", own_context / trained, above=0)
        own_factor = _yarn_attention_factor(parameters, factor)
        return YarnScaling(
            factor=factor,
            trained=trained,
            beta_fast=parameters.number("beta_fast", 32.0, above=0),
            beta_slow=parameters.number("beta_slow", 1.0, above=0),
            attention_factor=parameters.number("attention_factor", own_factor, above=0),
            truncate=parameters.flag("truncate", True),
        )
    raise UnsupportedModel(f"rope type '{kind}' is not described; known: default, linear, dynamic, llama3, yarn.")


def _yarn_attention_factor(parameters: Config, factor: float) -> float:
    """Section 3.4 of the YaRN paper; the two mscale keys are DeepSeek's variant of it."""

    def grown(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, over = parameters.number("mscale", 0.0), parameters.number("mscale_all_dim", 0.0)
    return grown(mscale) / grown(over) if mscale and over else grown(1.0)


def _layer(config: Config, shape: Shape, index: int, hidden: int, head_dim: int) -> Layer:
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    inner = config.integer("intermediate_size")
    if heads % kv_heads:
        raise UnsupportedModel(f"{heads} attention heads are no multiple of {kv_heads} key/value heads.")
    source, name = f"model.layers.{index}", f"layers.{index}"

    def linear(part: str, where: str, rows: int, columns: int, bias: bool) -> Linear:
        return Linear(name=f"{name}.{part}", source=f"{source}.{where}", rows=rows, columns=columns, bias=bias)

    def norm(part: str, where: str, size: int) -> Norm:
        return _norm(config, f"{name}.{part}", f"{source}.{where}", size)

    qkv, attn = shape.qkv_bias, "self_attn"
    return Layer(
        attention_norm=norm("attention_norm", "input_layernorm", hidden),
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            q=linear("attention.q", f"{attn}.q_proj", heads * head_dim, hidden, qkv),
            k=linear("attention.k", f"{attn}.k_proj", kv_heads * head_dim, hidden, qkv),
            v=linear("attention.v", f"{attn}.v_proj", kv_heads * head_dim, hidden, qkv),
            o=linear("attention.o", f"{attn}.o_proj", hidden, heads * head_dim, shape.o_bias),
            q_norm=norm("attention.q_norm", f"{attn}.q_norm", head_dim) if shape.qk_norm else None,
            k_norm=norm("attention.k_norm", f"{attn}.k_norm", head_dim) if shape.qk_norm else None,
            window=shape.window(index),
        ),
        mlp_norm=norm("mlp_norm", "post_attention_layernorm", hidden),
        mlp=Mlp(
            gate=linear("mlp.gate", "mlp.gate_proj", inner, hidden, shape.mlp_bias),
            up=linear("mlp.up", "mlp.up_proj", inner, hidden, shape.mlp_bias),
            down=linear("mlp.down", "mlp.down_proj", hidden, inner, shape.mlp_bias),
        ),
    )


def _norm(config: Config, name: str, source: str, size: int) -> Norm:
    return Norm(name=name, source=f"{source}.weight", size=size, epsilon=config.number("rms_norm_eps", 1e-6, above=0))
