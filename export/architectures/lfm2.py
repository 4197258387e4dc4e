"""LFM2: gated short convolutions in place of attention in most layers, q and k norms."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts
from embedllm.export.architectures._shared.rope import FULL, RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.recurrent import ShortConv
from embedllm.package.architecture.weights import Origin

CONVOLUTION = "conv"  # in 'layer_types'
_NAMES = Names(
    norm="embedding_norm",
    attention_norm="operator_norm",
    mlp_norm="ffn_norm",
    o="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)


def describe(config: Config) -> Decoder:
    return describe_text(config, "lfm2")


def describe_text(config: Config, model_type: str, model: str = _NAMES.model) -> Decoder:
    """model: where the decoder's tensors lie in the checkpoint."""
    shape = replace(shape_of(config, model_type), names=replace(_NAMES, model=model))
    return describe_shaped(config.replaced({"intermediate_size": _inner(config)}), shape)


def shape_of(config: Config, model_type: str) -> Shape:
    return Shape(
        model_type=model_type,
        names=_NAMES,
        norm=NormKind(key="norm_eps", epsilon=1e-5),
        tied=config.flag("tie_embedding", True),
        qk_norm="head",
        rope_keys=RopeKeys(theta=1_000_000.0),
        mixer=_mixer,
    )


def _mixer(parts: Parts, index: int) -> ShortConv | None:
    has_attention = index in _attention_layers(parts.config, parts.sizes.layers)
    return None if has_attention else short_convolution(parts, kernel=3)


def short_convolution(parts: Parts, *, kernel: int) -> ShortConv:
    """Of a layer that has one in place of attention. kernel: tokens, where config.json does not say it."""
    config, hidden = parts.config, parts.sizes.hidden
    bias, kernel = config.flag("conv_bias", False), config.integer("conv_L_cache", kernel, least=2)
    b, c, x = (
        parts.linear(f"attention.{part}", "conv.in_proj", hidden, hidden, bias=bias,
                     origin=Origin(rows=3 * hidden, start=place * hidden))
        for place, part in enumerate(("b", "c", "x"))
    )  # fmt: skip
    source = f"{parts.source}.conv.conv"
    return ShortConv(
        b=b,
        c=c,
        x=x,
        o=parts.linear("attention.o", "conv.out_proj", hidden, hidden, bias=bias),
        kernel=kernel,
        convolution=f"{source}.weight",
        bias=f"{source}.bias" if bias else "",
    )


def _attention_layers(config: Config, layers: int) -> set[int]:
    types = layer_types(config, (FULL, CONVOLUTION))
    if types is None:
        indices = config.integers("full_attn_idxs")
        return set(range(layers) if indices is None else indices)
    if FULL not in types:
        raise UnsupportedModel("no layer has attention; expected one at least, whose keys are as many as the tokens.")
    return {index for index, kind in enumerate(types) if kind == FULL}


def _inner(config: Config) -> int:
    """Values of an mlp: two thirds of what config.json says, times a factor, rounded up to a multiple."""
    inner = config.integer("block_ff_dim", config.integer("intermediate_size"))
    if not config.flag("block_auto_adjust_ff_dim", True):
        return inner
    inner = int(config.number("block_ffn_dim_multiplier", 1.0, above=0) * int(2 * inner / 3))
    multiple = config.integer("block_multiple_of", 256)
    return -(-inner // multiple) * multiple
