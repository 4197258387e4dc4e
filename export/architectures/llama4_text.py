"""Llama 4 (text only), MobileLLM-R1: NoPE layers, chunked attention, L2 norms of q and k, sigmoid experts."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.moe import Experts, gated, mixture, stacked
from embedllm.export.architectures._shared.parts import LLAMA, NormKind, Parts
from embedllm.export.architectures._shared.rope import FULL, RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention, AttentionTemperature
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Moe

_CHUNKED = "chunked_attention"
_PLACE = "feed_forward"


def describe(config: Config) -> Decoder:
    return describe_text(config, "llama4_text", "")


def describe_text(config: Config, model_type: str, place: str) -> Decoder:
    """The decoder of a Llama 4 whose tensors have names that begin with `place`."""
    layers = config.integer("num_hidden_layers")
    rotated, bias, sparse = (
        _rotated_layers(config, layers),
        config.flag("attention_bias", False),
        _sparse_layers(config),
    )
    names = replace(
        LLAMA,
        model=f"{place}{LLAMA.model}",
        head=f"{place}{LLAMA.head}",
        gate=f"{_PLACE}.gate_proj",
        up=f"{_PLACE}.up_proj",
        down=f"{_PLACE}.down_proj",
    )
    shape = Shape(
        model_type=model_type,
        names=names,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head" if config.flag("use_qk_norm", True) else "",
        qk_norm_kind=NormKind(weight=False, epsilon=1e-5),
        norm_after_rope=True,
        interleaved=True,
        rope_keys=RopeKeys(theta=500_000.0),
        rope=lambda index: 0 if rotated[index] else None,
        mixture=lambda parts, index: _mixture(parts, config) if index in sparse else None,
    )
    # of its own two sizes the larger is that of layers without experts
    decoder = describe_shaped(
        config.replaced({"intermediate_size": config.integer("intermediate_size_mlp", 16384)}), shape
    )
    chunks, temperature = _chunks(config, rotated), _temperature(config)
    own = (_own_attention(layer, chunk, temperature) for layer, chunk in zip(decoder.layers, chunks, strict=True))
    return replace(decoder, layers=tuple(own))


def _own_attention(layer: Layer, chunk: int | None, temperature: AttentionTemperature | None) -> Layer:
    """Layers with RoPE norm q and k behind it, NoPE layers scale q by its position."""
    attention = layer.attention
    assert isinstance(attention, Attention), "all layers have attention"
    if attention.rope is None:
        attention = replace(attention, q_norm=None, k_norm=None, norm_after_rope=False, temperature=temperature)
    return replace(layer, attention=replace(attention, chunk=chunk))


def _rotated_layers(config: Config, layers: int) -> list[bool]:
    """Which layers have RoPE; in 'no_rope_layers' a 1 is of one that has it."""
    marks = config.integers("no_rope_layers")
    if not marks:
        every = config.integer("no_rope_layer_interval", 4)
        return [(index + 1) % every != 0 for index in range(layers)]
    if len(marks) < layers:
        raise ExportError(f"config.json: 'no_rope_layers' has {len(marks)} entries; expected {layers}, one a layer.")
    return [mark != 0 for mark in marks[:layers]]


def _chunks(config: Config, rotated: list[bool]) -> list[int | None]:
    """The chunks that each layer's attention keeps to, in tokens; by default where it has RoPE."""
    size, kinds = config.integer_or_none("attention_chunk_size", 8192), layer_types(config, (FULL, _CHUNKED))
    chunked = rotated if kinds is None else [kind == _CHUNKED for kind in kinds]
    return [size if is_chunked else None for is_chunked in chunked]


def _temperature(config: Config) -> AttentionTemperature | None:
    key = "attn_temperature_tuning"  # 4 in the first checkpoints, which is true
    is_tuned = config.flag(key, True) if isinstance(config.value(key), bool) else config.integer(key, 1, least=0) > 0
    beta = config.number("attn_scale", 0.1)
    if not is_tuned or not beta:
        return None
    return AttentionTemperature(beta=beta, original_context=config.integer("floor_scale", 8192), offset=1)


def _sparse_layers(config: Config) -> range | list[int]:
    """The layers with experts."""
    listed, step = config.integers("moe_layers"), config.integer("interleave_moe_layer_step", 1, least=0)
    if listed is not None:
        return listed
    return range(step - 1, config.integer("num_hidden_layers"), step) if step else []


def _mixture(parts: Parts, config: Config) -> Moe:
    experts = Experts(
        count=config.integer("num_local_experts", 16),
        top_k=config.integer("num_experts_per_tok", 1),
        inner=config.integer("intermediate_size", 8192),
        router=f"{_PLACE}.router",
        place=f"{_PLACE}.experts",
    )
    moe = stacked(parts, mixture(parts, experts, scoring_func="sigmoid"), experts)
    shared = gated(parts, "mlp.shared", f"{_PLACE}.shared_expert", experts)
    return replace(moe, scales_input=True, shared=shared)
