"""LFM3 1.7B: LFM2 with post-norms, windows, gated attention (a value for each head) and proportional RoPE."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts
from embedllm.export.architectures._shared.proportional_rope import full_rope, rotated_first
from embedllm.export.architectures._shared.rope import FULL, SLIDING, RopeKeys, describe_rope
from embedllm.export.architectures._shared.sliding_window import windows
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.lfm2 import CONVOLUTION, short_convolution
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.rope import Rope
from embedllm.package.architecture.weights import Linear

_NAMES = Names(
    norm="embedding_norm", attention_norm="operator_norm", mlp_norm="ffn_norm", gate="feed_forward.w1",
    up="feed_forward.w3", down="feed_forward.w2",
)  # fmt: skip
_POST_NORMS = {"attention_post_norm": "post_operator_norm", "mlp_post_norm": "post_ffn_norm"}
_ROPES = {
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}


def describe(config: Config) -> Decoder:
    return describe_text(config, "lfm3", "model")


def describe_text(config: Config, model_type: str, place: str) -> Decoder:
    """The decoder of an LFM3 whose tensors have names that begin with `place`."""
    config = config.filled({"rope_parameters": _ROPES})  # of each kind: 'rope_theta' does not replace these
    head_dim, bias = config.integer("head_dim", 128), config.flag("attention_bias", False)
    types = layer_types(config, (FULL, SLIDING, CONVOLUTION)) or _usual_types(config.integer("num_hidden_layers"))
    if set(types) == {CONVOLUTION}:
        raise UnsupportedModel("no layer has attention; expected one at least, whose keys are as many as the tokens.")
    names = replace(_NAMES, model=place)
    sliding = [kind == SLIDING for kind in types]
    rope, local = full_rope(config, head_dim), describe_rope(config, head_dim, RopeKeys(theta=1e6, layers=SLIDING))
    shape = Shape(
        model_type=model_type,
        names=replace(names, **_POST_NORMS) if config.flag("use_sandwich_norm", True) else names,
        norm=NormKind(key="norm_eps", epsilon=1e-5),
        tied=True,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        local_rope=local,
        rope=lambda index: int(sliding[index]),
        window=windows(config, 256, sliding),
        gate=_gate if config.flag("use_attention_gate", True) else lambda parts: None,
        mixer=lambda parts, index: short_convolution(parts, kernel=7) if types[index] == CONVOLUTION else None,
    )
    decoder = describe_shaped(config.replaced({"rope_parameters": None, "head_dim": head_dim}), shape)
    return replace(decoder, rope=rope, layers=tuple(_rotated(layer, rope) for layer in decoder.layers))


def _usual_types(layers: int) -> list[str]:
    """Of a config that does not say them."""
    kinds = {2: FULL, 0: SLIDING}
    return [kinds.get(index % 4, CONVOLUTION) if index else CONVOLUTION for index in range(layers)]


def _gate(parts: Parts) -> Linear:
    return parts.linear("attention.gate", "self_attn.gate_proj", parts.sizes.heads, parts.sizes.hidden)


def _rotated(layer: Layer, rope: Rope) -> Layer:
    """The layer; rope: of those whose attention sees all, with their q and k in its order."""
    found = layer.attention
    if not isinstance(found, Attention) or found.rope != 0:
        return layer
    q, k = (replace(one, origin=rotated_first(rope, found.head_dim, one.rows)) for one in (found.q, found.k))
    norms = {part: norm and replace(norm, origin=rotated_first(rope, norm.size, norm.size))
             for part, norm in (("q_norm", found.q_norm), ("k_norm", found.k_norm))}  # fmt: skip
    return replace(layer, attention=replace(found, q=q, k=k, **norms))
